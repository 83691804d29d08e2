-- Makes a replica the owner, if what it has seen is still true.
-- KEYS: session, the heartbeat of the owner that was seen, the count of claims from it.
-- ARGV: boot and fence that were seen, address and boot of the claimer, ms of margin, 1 if an owner
-- with a heartbeat stays, ms that the count is kept.
-- Returns the new fence, or 0, and what is kept. One whose answer was lost is not told of it when it
-- asks once more: as far as it could tell, another request of its own was faster.
local known = redis.call('HMGET', KEYS[1], 'boot', 'fence', 'ttl', 'kept')
if not known[2] then return {0, ''} end
local owner = known[1] or ''
if owner ~= ARGV[1] or known[2] ~= ARGV[2] then return {0, ''} end
if owner ~= '' and owner ~= ARGV[4] then
  -- It has come back since it was seen.
  if ARGV[6] == '1' and redis.call('PTTL', KEYS[2]) >= 0 then return {0, ''} end
  -- Its next heartbeat learns of it (beat.lua). SET, because an ACL for the scripts of an earlier
  -- build has no INCR.
  local count = (tonumber(redis.call('GET', KEYS[3])) or 0) + 1
  redis.call('SET', KEYS[3], string.format('%.0f', count), 'PX', ARGV[7])
end
redis.call('HSET', KEYS[1], 'address', ARGV[3], 'boot', ARGV[4])
redis.call('PEXPIRE', KEYS[1], (tonumber(known[3]) or 0) + ARGV[5])
return {redis.call('HINCRBY', KEYS[1], 'fence', 1), known[4] or ''}
