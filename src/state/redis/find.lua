-- Looks a session up, with for how many ms its owner's heartbeat stands; negative for none.
-- KEYS: session, epoch. ARGV: what the keys of heartbeats begin with, the epoch that the replica
-- knows (empty: none).
-- Returns -2 for one that is not there in another epoch: its owner may add it again.
local record = redis.call('HMGET', KEYS[1], 'principal', 'server', 'address', 'boot', 'fence',
  'kept', 'ttl', 'born', 'seal')
if not record[5] then
  local is_other = ARGV[2] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[2]
  return is_other and -2 or false
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
record[8] = string.format('%.0f', math.max(0, now - (tonumber(record[8]) or now)))
local boot = record[4] or ''
record[9] = record[9] or ''
record[10] = boot ~= '' and redis.call('PTTL', ARGV[1] .. boot) or -2
for at = 1, 7 do
  record[at] = record[at] or ''
end
return record
