-- ARGV: token
local state, token = get('state', 'token')
if state ~= 'in_progress' or token ~= ARGV[1] then return 0 end
return redis.call('DEL', key)
