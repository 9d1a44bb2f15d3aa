local fields = { 'state', 'fingerprint', 'owner', 'lease_until', 'takeovers', 'first_at', 'epoch', 'result', 'processed_at' }
local record = { get(unpack(fields)) }
record[#record + 1] = whole(clock())
record[#record + 1] = whole(redis.call('PTTL', key))
return record
