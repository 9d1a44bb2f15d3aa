-- A key is a hash: state (in_progress, completed), fingerprint, owner, token, lease_until, takeovers, first_at, epoch, result,
-- processed_at. Times are microseconds by this server's clock. A completed key has a time to live, one in progress has none.
local key = KEYS[1]

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function whole(n) return string.format('%.0f', n) end

local function get(...)
  local values = redis.call('HMGET', key, ...)
  for i = 1, #values do values[i] = values[i] or '' end
  return unpack(values)
end

-- An empty fingerprint is like every other; two of different kinds, which is all before the digest, say nothing of each other.
local function same(a, b)
  if a == '' or b == '' or a == b then return true end
  return string.match(a, '^(.*:)') ~= string.match(b, '^(.*:)')
end

-- A full server refuses a script whose first write needs memory; a removal lets what follows pass. So a new key is refused, and a
-- lease can always end.
local function completed(fingerprint, owner, token, epoch, retention, result)
  redis.call('HSET', key, 'state', 'completed', 'fingerprint', fingerprint, 'owner', owner, 'token', token, 'epoch', epoch,
    'processed_at', whole(clock()))
  if result ~= '' then redis.call('HSET', key, 'result', result) end
  redis.call('PEXPIRE', key, retention)
end
