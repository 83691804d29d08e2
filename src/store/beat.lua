-- Says that a replica lives, and learns in which life the store is.
-- KEYS: epoch, recovering, the replica's heartbeat.
-- ARGV: address, ms that a heartbeat stands, an epoch to begin with, the epoch that the replica
-- knew before (empty: none), ms that the epoch is kept, ms of recovery.
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
local epoch = redis.call('GET', KEYS[1])
if not epoch then
  epoch = ARGV[3]
  redis.call('SET', KEYS[1], epoch, 'PX', ARGV[5])
elseif redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) * 0.9 then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
-- Whoever knew another life has sessions to register again. A mark, so that all replicas wait.
if ARGV[4] ~= '' and ARGV[4] ~= epoch then
  redis.call('SET', KEYS[2], epoch, 'PX', ARGV[6])
end
return {epoch, redis.call('EXISTS', KEYS[2])}
