-- Draws from an account that is filled with `rate` a second, and holds no more than that.
-- KEYS: account. ARGV: rate, wanted. Returns what is given.
local rate, wanted = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level = rate
local kept = redis.call('GET', KEYS[1])
if kept then
  local of, at = string.match(kept, '^(%S+) (%d+)$')
  level = math.min(rate, of + math.max(0, now - at) * rate / 1000000)
end
local given = math.min(wanted, math.floor(level))
-- After a second it is full, like one that is not there.
redis.call('SET', KEYS[1], string.format('%.6f %.0f', level - given, now), 'PX', 1100)
return string.format('%.0f', given)
