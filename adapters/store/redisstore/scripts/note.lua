-- ARGV: fingerprint, epoch, owner, retention in milliseconds, result
local state, epoch = get('state', 'epoch')
if state == 'in_progress' or state == 'completed' and epoch == ARGV[2] then return 0 end
if state ~= '' then redis.call('DEL', key) end
completed(ARGV[1], ARGV[3], '', ARGV[2], ARGV[4], ARGV[5])
return 1
