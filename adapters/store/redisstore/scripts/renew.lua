-- ARGV: token, lease
local state, token = get('state', 'token')
if state ~= 'in_progress' or token ~= ARGV[1] then return 0 end
redis.call('HSET', key, 'lease_until', whole(clock() + ARGV[2]))
return 1
