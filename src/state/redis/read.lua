-- Reads what stands behind an event of a stream.
-- KEYS: session. ARGV: stream, number, bytes after which a page is full.
-- Returns {0, 1 if the stream has ended, number of its last event, the events}; {-1, the number
-- before the oldest event} where there is a gap.
local id, after, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key = KEYS[1] .. ':' .. id
local found = redis.call('HMGET', KEYS[1], 'n:' .. id, 'o:' .. id)
local last = tonumber(found[1])
if not last then return {-1, 0} end

local function numbered(entry)
  return tonumber(string.match(entry[1], '^%d+'))
end

if after > last then
  local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  return {-1, first and numbered(first) - 1 or last}
end
local page, bytes, wanted, count = {0, found[2] and 0 or 1, last}, 0, after + 1, 4
local gap = last
while wanted <= last and bytes <= most do
  local from = string.format('%.0f', wanted)
  local chunk = redis.call('XRANGE', key, from, '+', 'COUNT', count)
  local is_gap = #chunk == 0
  for _, entry in ipairs(chunk) do
    local number = numbered(entry)
    local is_mark = entry[2][1] ~= 'e'
    if number ~= wanted or is_mark then
      gap, is_gap = is_mark and number or number - 1, true
      break
    end
    page[#page + 1] = entry[2][2]
    bytes, wanted = bytes + #entry[2][2], wanted + 1
    if bytes > most then break end
  end
  if is_gap then break end
  -- Few at a time where they are large.
  count = bytes < 16384 and math.min(count * 4, 256) or 16
end
if #page == 3 and after < last then return {-1, gap} end
return page
