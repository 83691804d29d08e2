-- Adds a session, or again what its owner has added already.
-- KEYS: session, epoch.
-- ARGV: epoch, principal, server, address, boot, fence, kept, ms it outlives its owner's last
-- sign, ms since it began, ms of margin, seal.
-- Returns 1, 0 if the id is taken, or -2 in another epoch.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return -2 end
local known = redis.call('HMGET', KEYS[1], 'boot', 'fence', 'born')
if known[2] and (known[1] ~= ARGV[5] or known[2] ~= ARGV[6]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local born = known[3] or string.format('%.0f', now - tonumber(ARGV[9]))
redis.call('HSET', KEYS[1], 'principal', ARGV[2], 'server', ARGV[3], 'address', ARGV[4],
  'boot', ARGV[5], 'fence', ARGV[6], 'kept', ARGV[7], 'ttl', ARGV[8], 'born', born,
  'seal', ARGV[11])
redis.call('PEXPIRE', KEYS[1], ARGV[8] + ARGV[10])
return 1
