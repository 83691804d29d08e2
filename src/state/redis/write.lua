-- What an owner writes to the streams of one session, in order.
-- KEYS: session, epoch.
-- ARGV: epoch, fence, what is kept of a stream: ms, events; bytes of all that have ended, and how
-- many; ms of margin; the boot id of the writer; then the writes:
--   'o' stream number calls       a stream begins, behind that event; or its calls changed
--   'c' stream calls              what its next owner needs to know changed; no result
--   'a' stream number cut event   an event; what stands before number `cut` goes (0: nothing)
--   'm' stream number cut         the mark of an event that is too large to be kept
--   'e' stream bytes              it ends, holding so many bytes (-1: nobody knows)
--   'f'                           nothing of the streams is left
-- Returns one result for each: the number of the last event, or -1 for an event behind the end of
-- its stream; -1 for all if somebody else owns the session, also by the same fence: a claim may be
-- lost with a master, and the next one at its successor has the same number; -2 in another epoch. A
-- write that comes again, because its reply was lost, has the result that it had.
-- The session's hash has for each stream n:<stream>, the number of its last event, and while it is
-- open o:<stream>, its calls; h is the highest stream, eb the bytes of the ended ones.
local session, prefix, ended = KEYS[1], KEYS[1] .. ':', KEYS[1] .. ':ended'
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return -2 end
local record = redis.call('HMGET', session, 'fence', 'ttl', 'h', 'boot')
if record[1] ~= ARGV[2] then return -1 end
local owner = record[4] or ''
if owner ~= '' and owner ~= ARGV[8] then return -1 end
local age, events, bytes_most = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local ended_most = tonumber(ARGV[6])
local life = math.min(age, (tonumber(record[2]) or 0) + tonumber(ARGV[7]))
local highest = tonumber(record[3]) or -1
local streams = {}

local function stream_of(id)
  local stream = streams[id]
  if not stream then
    local found = redis.call('HMGET', session, 'n:' .. id, 'o:' .. id)
    stream = {key = prefix .. id, last = tonumber(found[1]), is_open = found[2] ~= false, cut = 0}
    streams[id] = stream
  end
  return stream
end

-- False for a stream that has ended; one that nobody knows begins.
local function open(id, stream, calls, last)
  if stream.is_open then
    if calls then redis.call('HSET', session, 'o:' .. id, calls) end
    return true
  end
  if stream.last then return false end
  stream.is_open, stream.last = true, tonumber(last) or 0
  redis.call('UNLINK', stream.key)
  redis.call('HSET', session, 'n:' .. id, last or 0, 'o:' .. id, calls or '')
  if tonumber(id) > highest then
    highest = tonumber(id)
    redis.call('HSET', session, 'h', id)
  end
  return true
end

local function expire(key, ms)
  -- Not at each event: once more than a tenth has passed.
  if redis.call('PTTL', key) < ms * 0.9 then redis.call('PEXPIRE', key, ms) end
end

local function append(id, number, cut, field, value)
  local stream = stream_of(id)
  -- Before its end is: the event and the end of its stream may both come again.
  if stream.last and number <= stream.last then return stream.last end
  if not open(id, stream) then return -1 end
  -- Numbers go on where what stood before is not all kept: nobody may read across that.
  if number > stream.last + 1 then redis.call('UNLINK', stream.key) end
  redis.call('XADD', stream.key, string.format('%.0f-0', number), field, value)
  stream.last, stream.is_changed = number, true
  stream.cut = math.max(stream.cut, cut)
  return number
end

-- Ended streams go, the oldest first, when they are too many, too large together, or too old.
local function sweep(now)
  local total = tonumber(redis.call('HGET', session, 'eb')) or 0
  local count = redis.call('LLEN', ended)
  while count > 1 do
    local id, bytes, since = string.match(redis.call('LINDEX', ended, 0), '^(%d+) (%d+) (%d+)$')
    if count <= ended_most and total <= bytes_most and now - since <= age then break end
    redis.call('LPOP', ended)
    redis.call('UNLINK', prefix .. id)
    redis.call('HDEL', session, 'n:' .. id)
    streams[id] = nil
    count, total = count - 1, total - bytes
  end
  redis.call('HSET', session, 'eb', string.format('%.0f', total))
end

-- The list of ended streams outlives their events: without it nothing but their fields is left of them.
local function forget_expired()
  local fields, is_open = redis.call('HKEYS', session), {}
  for _, field in ipairs(fields) do
    local id = string.match(field, '^o:(%d+)$')
    if id then is_open[id] = true end
  end
  for _, field in ipairs(fields) do
    local id = string.match(field, '^n:(%d+)$')
    if id and not is_open[id] then
      redis.call('HDEL', session, field)
      redis.call('UNLINK', prefix .. id)
      streams[id] = nil
    end
  end
  redis.call('HDEL', session, 'eb')
end

local function finish(id, bytes)
  local stream = stream_of(id)
  if stream.last and not stream.is_open then return stream.last end
  if redis.call('EXISTS', ended) == 0 then forget_expired() end
  if not stream.is_open then open(id, stream) end
  stream.is_open = false
  redis.call('HDEL', session, 'o:' .. id)
  redis.call('HSET', session, 'n:' .. id, string.format('%.0f', stream.last))
  if bytes < 0 then bytes = redis.call('MEMORY', 'USAGE', stream.key) or 0 end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('RPUSH', ended, string.format('%s %.0f %.0f', id, bytes, now))
  redis.call('HINCRBY', session, 'eb', string.format('%.0f', bytes))
  -- Each time, so that no event outlives it.
  redis.call('PEXPIRE', ended, life)
  local last = stream.last
  sweep(now)
  return last
end

local function forget()
  for _, field in ipairs(redis.call('HKEYS', session)) do
    local kind = string.sub(field, 1, 2)
    if kind == 'n:' then redis.call('UNLINK', prefix .. string.sub(field, 3)) end
    if kind == 'n:' or kind == 'o:' then redis.call('HDEL', session, field) end
  end
  redis.call('HDEL', session, 'h', 'eb')
  redis.call('UNLINK', ended)
  streams, highest = {}, -1
  return 0
end

local results, at = {}, 9
while ARGV[at] do
  local kind, id, done = ARGV[at], ARGV[at + 1], nil
  if kind == 'a' then
    done = append(id, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), 'e', ARGV[at + 4])
    at = at + 5
  elseif kind == 'm' then
    done = append(id, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), 'm', '')
    at = at + 4
  elseif kind == 'c' then
    local stream = stream_of(id)
    if stream.is_open then open(id, stream, ARGV[at + 2]) end
    at = at + 3
  elseif kind == 'o' then
    local stream = stream_of(id)
    open(id, stream, ARGV[at + 3], ARGV[at + 2])
    done = stream.last
    at = at + 4
  elseif kind == 'e' then
    done = finish(id, tonumber(ARGV[at + 2]))
    at = at + 3
  else
    done = forget()
    at = at + 1
  end
  results[#results + 1] = done
end
for id, stream in pairs(streams) do
  if stream.is_changed then
    redis.call('HSET', session, 'n:' .. id, string.format('%.0f', stream.last))
    if stream.cut > 0 then
      redis.call('XTRIM', stream.key, 'MINID', string.format('%.0f-0', stream.cut))
    else
      redis.call('XTRIM', stream.key, 'MAXLEN', events)
    end
    expire(stream.key, life)
  end
end
return results
