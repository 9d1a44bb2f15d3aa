-- ARGV: token, epoch, owner, retention in milliseconds, result
local state, token, fingerprint, owner = get('state', 'token', 'fingerprint', 'owner')
if token ~= ARGV[1] then return 0 end
if state == 'completed' then return 1 end -- by this call, whose answer was lost
if ARGV[3] ~= '' then owner = ARGV[3] end
redis.call('DEL', key)
completed(fingerprint, owner, token, ARGV[2], ARGV[4], ARGV[5])
return 1
