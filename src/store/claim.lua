-- Makes a replica the owner, if what it has seen is still true.
-- KEYS: session. ARGV: boot and fence that were seen, address and boot of the claimer, ms of
-- margin. Returns the new fence, or 0.
local known = redis.call('HMGET', KEYS[1], 'boot', 'fence', 'ttl')
if not known[2] then return 0 end
local boot = known[1] or ''
-- Asked once more, because the first answer was lost: it took place.
local is_done = boot == ARGV[4] and tonumber(known[2]) == tonumber(ARGV[2]) + 1
if not is_done then
  if boot ~= ARGV[1] or known[2] ~= ARGV[2] then return 0 end
  redis.call('HSET', KEYS[1], 'address', ARGV[3], 'boot', ARGV[4])
  redis.call('HINCRBY', KEYS[1], 'fence', 1)
end
redis.call('PEXPIRE', KEYS[1], (tonumber(known[3]) or 0) + ARGV[5])
return tonumber(redis.call('HGET', KEYS[1], 'fence'))
