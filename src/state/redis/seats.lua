-- Says how many seats of an account this replica has out, and takes more.
-- KEYS: account. ARGV: what the keys of heartbeats begin with, boot, seats that are out, ms that
-- this stands, then for each seat that is wanted how many there may be.
-- Returns for each wanted seat 1 or 0. Counts are absolute: what was lost is right again with the
-- next one, and those of a replica that is gone do not count.
local boot, own, stands = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others, all = 0, redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if all[at] ~= boot then
    local count, since = string.match(all[at + 1], '^(%d+) (%d+)$')
    if not count or now - since > stands then
      redis.call('HDEL', KEYS[1], all[at])
    elseif redis.call('EXISTS', ARGV[1] .. all[at]) == 1 then
      others = others + count
    end
  end
end
local results = {}
for at = 5, #ARGV do
  local is_free = others + own < tonumber(ARGV[at])
  if is_free then own = own + 1 end
  results[#results + 1] = is_free and 1 or 0
end
if own > 0 then
  redis.call('HSET', KEYS[1], boot, string.format('%.0f %.0f', own, now))
  redis.call('PEXPIRE', KEYS[1], stands)
else
  redis.call('HDEL', KEYS[1], boot)
end
return results
