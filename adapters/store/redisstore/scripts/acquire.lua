-- ARGV: fingerprint, epoch, owner, a new token, lease
local fingerprint, epoch, owner, token, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = clock()
local state, print, holder, held, till, taken, completedIn = get('state', 'fingerprint', 'owner', 'token', 'lease_until', 'takeovers', 'epoch')

if state == 'completed' and completedIn == epoch then
  return same(fingerprint, print) and 'duplicate' or 'mismatch'
end
if state == 'in_progress' then
  if not same(fingerprint, print) then return 'mismatch' end
  if holder == owner then -- it asks again: the answer was lost
    token = held
  elseif tonumber(till) > now then
    return 'busy'
  else
    taken = redis.call('HINCRBY', key, 'takeovers', 1)
  end
  redis.call('HSET', key, 'owner', owner, 'token', token, 'lease_until', whole(now + lease))
  return { tonumber(taken) > 0 and 'taken_over' or 'fresh', token }
end
if state ~= '' then redis.call('DEL', key) end
redis.call('HSET', key, 'state', 'in_progress', 'fingerprint', fingerprint, 'owner', owner, 'token', token,
  'lease_until', whole(now + lease), 'takeovers', 0, 'first_at', whole(now))
return { 'fresh', token }
