-- What an owner does to its session.
-- KEYS: session. ARGV: its fence; 'keep', ms of margin and perhaps what is kept | 'release' |
-- 'remove'. Returns 1, 0 if the session is not there, or -1 if it has another owner.
local fence = redis.call('HGET', KEYS[1], 'fence')
if not fence then return 0 end
if fence ~= ARGV[1] then return -1 end
if ARGV[2] == 'keep' then
  if ARGV[4] then redis.call('HSET', KEYS[1], 'kept', ARGV[4]) end
  local ttl = tonumber(redis.call('HGET', KEYS[1], 'ttl')) or 0
  redis.call('PEXPIRE', KEYS[1], ttl + ARGV[3])
elseif ARGV[2] == 'release' then
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
