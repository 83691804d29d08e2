-- Says that a replica lives, and learns in which life the store is, and how many sessions and tasks
-- others have claimed from it.
-- KEYS: epoch, recovering, the replica's heartbeat, the replicas that begin sessions, the count of
-- claims from this one.
-- ARGV: address, ms that a heartbeat stands, an epoch to begin with, the epoch that the replica
-- knew before (empty: none), ms that the epoch is kept, ms of recovery, the boot id, 1 if it begins
-- sessions.
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now, name = time[1] * 1000 + math.floor(time[2] / 1000), ARGV[7] .. ' ' .. ARGV[1]
if ARGV[8] == '1' then
  redis.call('ZADD', KEYS[4], now, name)
else
  redis.call('ZREM', KEYS[4], name)
end
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[4], ARGV[2])
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
return {epoch, redis.call('EXISTS', KEYS[2]), tonumber(redis.call('GET', KEYS[5])) or 0}
