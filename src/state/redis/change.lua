-- What an owner does to its session.
-- KEYS: session. ARGV: its fence and boot id; 'keep', ms of margin and perhaps what is kept |
-- 'release' | 'remove'. Returns 1, 0 if the session is not there, or -1 if it has another owner, also
-- by the same fence (write.lua).
local known = redis.call('HMGET', KEYS[1], 'fence', 'boot', 'ttl', 'eb')
if not known[1] then return 0 end
local owner = known[2] or ''
if known[1] ~= ARGV[1] or (owner ~= '' and owner ~= ARGV[2]) then return -1 end

-- Of ended streams whose list has expired, their fields are left (write.lua): a session in which no
-- other stream ends would keep them until its end.
local function forget_expired()
  local fields, is_open = redis.call('HKEYS', KEYS[1]), {}
  for _, field in ipairs(fields) do
    local id = string.match(field, '^o:(%d+)$')
    if id then is_open[id] = true end
  end
  for _, field in ipairs(fields) do
    local id = string.match(field, '^n:(%d+)$')
    if id and not is_open[id] then
      redis.call('HDEL', KEYS[1], field)
      redis.call('UNLINK', KEYS[1] .. ':' .. id)
    end
  end
  redis.call('HDEL', KEYS[1], 'eb')
end

if ARGV[3] == 'keep' then
  if ARGV[5] then redis.call('HSET', KEYS[1], 'kept', ARGV[5]) end
  redis.call('PEXPIRE', KEYS[1], (tonumber(known[3]) or 0) + ARGV[4])
  -- Behind what a Redis without memory refuses. None has ended since without `eb`.
  if known[4] and redis.call('EXISTS', KEYS[1] .. ':ended') == 0 then forget_expired() end
elseif ARGV[3] == 'release' then
  redis.call('HDEL', KEYS[1], 'address', 'boot')
else
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 2) == 'n:' then
      redis.call('UNLINK', KEYS[1] .. ':' .. string.sub(field, 3))
    end
  end
  redis.call('UNLINK', KEYS[1] .. ':ended', KEYS[1])
end
return 1
