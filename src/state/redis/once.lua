-- Uses a value that is good once within a window.
-- KEYS: value. ARGV: a text that no other call has, window in milliseconds. Returns 1 for the first use, else 0.
-- The same call again, after its reply was lost, is the same use.
local by = redis.call('GET', KEYS[1])
if by then
  return by == ARGV[1] and 1 or 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
