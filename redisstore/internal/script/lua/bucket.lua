-- TokenBucket and LeakyBucket, a queue (RefillInterval is interval.lua). take.lua describes the
-- blocks.
--
-- Constants: unit, the units of a microsecond; the time that all tokens cost, as whole microseconds
-- and units, like each cost; and code, which ends the short form of a state, or -1. State: the
-- instant at which the bucket will be full (of a queue: empty), as whole microseconds and units;
-- and the latest instant at which events were spent, or of a queue the instant at which the turns
-- of its reservations end.
--# opening
local _, unit, spanTicks, spanUnits, code, now, op, times, n, wait, costTicks, costUnits, pos =
  unpack('<BdddddBI4dddd', request)
--# cost
costTicks, costUnits, pos = unpack('<dd', request, pos)
--# constants
local unit, spanTicks, spanUnits, code
unit, spanTicks, spanUnits, code, pos = unpack('<dddd', request, pos)
local costTicks, costUnits -- of the events of a request
--# traits
width = 24, priced = true, code = code,
markSize = 16, markForm = 'I8I8', levels = true,
--@ if queue
queue = true,
--@ end
--# state
local fullTicks, fullUnits, last
--# fits
fits = #s == 24
--# shorten
--@ if bucket
local matters = last > now
--@ end
--@ if queue
local matters = last > fullTicks
--@ end
if code >= 0 and fullUnits == 0 and fullTicks >= 1.6e15 and fullTicks < 2.4e15 and not matters then
  state = format('%d%04d', fullTicks - 1.5e15, code)
end
--# load
if s == '' then
  fullTicks, fullUnits, last = 0, 0, 0
elseif #s == 24 then
  fullTicks, fullUnits, last = unpack('<I8I8I8', s)
else -- short
  fullTicks, fullUnits, last = tonumber(sub(s, 1, 15)) + 1.5e15, 0, 0
end
--# arrival
-- Sets ticks and units to the instant at which the bucket will be full after events of this cost
-- are spent at start.
local ticks, units = fullTicks, fullUnits
if ticks < start then ticks, units = start, 0 end
ticks, units = ticks + costTicks, units + costUnits
if units >= unit then ticks, units = ticks + 1, units - unit end
--# ready
local start = t
--@ if bucket
if last > t then start = last end
--@ end
--@ arrival
when = ticks - spanTicks
if units > spanUnits then when = when + 1 end -- rounded up
if when < start then when = start end
--# delay
when = fullTicks
if fullUnits > 0 then when = when + 1 end
if when < last then when = last end
when = when - t
if when < 0 then when = 0 end
--# spend
--@ if bucket
last = t
--@ end
--@ if queue
do
  local ticks, units = fullTicks, fullUnits -- when the turns told are over
  local late = last > ticks + (units > 0 and 1 or 0)
  if late then ticks, units = last, 0 end
  if late or op == 2 then
    if ticks < t then ticks, units = t, 0 end
    ticks, units = ticks + costTicks, units + costUnits
    if units >= unit then ticks, units = ticks + 1, units - unit end
    if units > 0 then ticks = ticks + 1 end
    last = ticks
  end
end
--@ end
local start = t
--@ arrival
fullTicks, fullUnits = ticks, units
--# fresh
when = fullTicks
if fullUnits > 0 then when = when + 1 end
if when < last then when = last end
--# dump
s = pack('<I8I8I8', fullTicks, fullUnits, last)
--# beyond
t = now
--@ if bucket
if last > now then t = last end
--@ end
--# room
local start = t
--@ arrival
room = ticks < LAST or ticks == LAST and units == 0
if not room then -- but what is granted now is possible
  ticks = ticks - t
  room = ticks < spanTicks or ticks == spanTicks and units <= spanUnits
end
--# charge
--@ spend
--# lacking
-- Sets ticks and units to what is missing at t, or at the instant of a reservation ahead.
local ticks, units = fullTicks - t, fullUnits
--@ if bucket
if last > t then ticks = fullTicks - last end
--@ end
if ticks < 0 then ticks, units = 0, 0 end
--# mark
--@ lacking
ticks, units = ticks + costTicks, units + costUnits
if units >= unit then ticks, units = ticks + 1, units - unit end
mark = pack('<I8I8', ticks, units)
--# passMark
--@ lacking
local least, rest = unpack('<I8I8', mark)
if ticks < least or ticks == least and units < rest then mark = pack('<I8I8', ticks, units) end
--# leasts
-- Sets leastTicks and leastUnits to the least that was missing since each hold.
--@ words
--@ lacking
local each = size / 8
local k, a = #out, #words - each + (p.markAt + 7) / 8
if ticks < words[a] or ticks == words[a] and units < words[a + 1] then words[a], words[a + 1] = ticks, units end
local leastTicks, leastUnits, sumTicks, sumUnits = {}, {}, 0, 0
for i = #list / size, out[1], -1 do
  local least, rest = words[a], words[a + 1]
  if least < ticks or least == ticks and rest < units then ticks, units = least, rest end
  if i == out[k] then
    leastTicks[k], leastUnits[k], k = ticks, units, k - 1
  end
  a = a - each
end
p.merged = pack('<I8I8', ticks, units)
--# costOf
-- Sets ticks and units to the cost of n events.
local more
ticks, units = n * p.oneTicks, n * p.oneUnits
if units < 9007199254740992 then
  more = floor(units / unit)
  units = units - more * unit
else
  --@ wide
  local high, low = product(n, p.oneUnits, 0)
  more, units = divide(high, low, unit, n)
end
ticks = ticks + more
--# costs
local ticks, units
--@ costOf
costTicks, costUnits = ticks, units
--# refunds
-- The cost of the unused events, or more than can be missing, ...
local backTicks, backUnits
do
  local n, ticks, units = unused
  --@ costOf
  backTicks, backUnits = ticks, units
end
-- ... but not more than was missing since, without what has come back of older holds.
local ticks, units = leastTicks[k] - sumTicks, leastUnits[k] - sumUnits
if units < 0 then ticks, units = ticks - 1, units + unit end
if ticks < backTicks or ticks == backTicks and units < backUnits then backTicks, backUnits = ticks, units end
sumTicks, sumUnits = sumTicks + backTicks, sumUnits + backUnits
if sumUnits >= unit then sumTicks, sumUnits = sumTicks + 1, sumUnits - unit end
leastTicks[k], leastUnits[k] = sumTicks, sumUnits -- what has come back since
ticks, units = fullTicks - backTicks, fullUnits - backUnits
if units < 0 then ticks, units = ticks - 1, units + unit end
if ticks < 0 then ticks, units = 0, 0 end
--@ if queue
do -- the turns told end earlier, too; see leakybucket.go
  local over, left = fullTicks, ticks
  if fullUnits > 0 then over = over + 1 end
  if units > 0 then left = left + 1 end
  if last > over then last = last - backTicks elseif last > left then last = left end
end
--@ end
fullTicks, fullUnits = ticks, units
--# lower
-- What has come back is missing no more since. The mark of a hold that has ended stands for the
-- time since the next older one.
k, a = 1, (out[1] - 1) * each + (p.markAt + 7) / 8
local cameTicks, cameUnits, kept = 0, 0
if out[1] > 1 then kept = a - each end
for i = out[1], #list / size do
  local gone = i == out[k]
  if gone then
    cameTicks, cameUnits, k = leastTicks[k], leastUnits[k], k + 1
  end
  local least, rest = words[a] - cameTicks, words[a + 1] - cameUnits
  if rest < 0 then least, rest = least - 1, rest + unit end
  if not gone then
    words[a], words[a + 1], kept = least, rest, a
  elseif kept and (least < words[kept] or least == words[kept] and rest < words[kept + 1]) then
    words[kept], words[kept + 1] = least, rest
  end
  a = a + each
end
