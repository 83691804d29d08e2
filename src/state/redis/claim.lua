-- Makes a replica the owner, if what it has seen is still true.
-- KEYS: session. ARGV: boot and fence that were seen, address and boot of the claimer, ms of
-- margin. Returns the new fence, or 0. One whose answer was lost is not told of it when it asks
-- once more: as far as it could tell, another request of its own was faster.
local known = redis.call('HMGET', KEYS[1], 'boot', 'fence', 'ttl')
if not known[2] then return 0 end
if (known[1] or '') ~= ARGV[1] or known[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'address', ARGV[3], 'boot', ARGV[4])
redis.call('PEXPIRE', KEYS[1], (tonumber(known[3]) or 0) + ARGV[5])
return redis.call('HINCRBY', KEYS[1], 'fence', 1)
