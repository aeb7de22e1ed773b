-- TokenBucket and LeakyBucket (RefillInterval is interval.lua; driver.lua explains the
-- sections). The state is the instant at which the bucket will be full (of a LeakyBucket:
-- empty), as whole microseconds and units, of which a microsecond has p.unit; and the
-- latest instant at which events were spent, or of a LeakyBucket the instant at which the
-- turns of its reservations end.
--@@open
p.unit, p.spanTicks, p.spanUnits, p.code, pos = unpack('<dddd', request, pos)
p.width, p.queue = 24, p.kind == 2
--@@short
-- Redis keeps a decimal number of up to 19 digits in 16 bytes, and others in 32 or more. So the state
-- is such a number if the latest instant (of a queue: the end of its turns) does not matter, if there are no units, and if the time of an event is a number of up to
-- three digits and up to nine zeros: 15 digits for the microseconds since 1.5e15 (in 2017, until
-- 2046), three for those digits and one for the number of zeros. p.code is the last four, or -1.
local ticks = #s == 19 and p.code >= 0 and tonumber(sub(s, 16)) == p.code and tonumber(sub(s, 1, 15))
if ticks then from = 0 end
--@@shorten
if p.code >= 0 and p.units == 0 and p.ticks >= 1.6e15 and p.ticks < 2.4e15 and p.last <= (p.queue and p.ticks or now) then
  state = format('%d%04d', p.ticks - 1.5e15, p.code)
end
--@@load
if s == '' then
  p.ticks, p.units, p.last = 0, 0, 0
elseif #s == 24 then
  p.ticks, p.units, p.last = unpack('<I8I8I8', s)
else -- short
  p.ticks, p.units, p.last = tonumber(sub(s, 1, 15)) + 1.5e15, 0, 0
end
--@@arrival
-- sets ticks and units to that instant, after events of this cost are spent at from
local ticks, units = p.ticks, p.units
if ticks < from then ticks, units = from, 0 end
ticks, units = ticks + p.costTicks, units + p.costUnits
if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
--@@ready
local from = t
if p.last > t and not p.queue then from = p.last end
--@<arrival
when = ticks - p.spanTicks
if units > p.spanUnits then when = when + 1 end -- rounded up
if when < from then when = from end
--@@hold
when = p.ticks
if p.units > 0 then when = when + 1 end
if p.queue and when < p.last then when = p.last end
when = when - t
if when < 0 then when = 0 end
--@@spend
if not p.queue then
  p.last = t
else
  local ticks, units = p.ticks, p.units -- when the turns told are over
  local late = p.last > ticks + (units > 0 and 1 or 0)
  if late then ticks, units = p.last, 0 end
  if late or op == 2 then
    if ticks < t then ticks, units = t, 0 end
    ticks, units = ticks + p.costTicks, units + p.costUnits
    if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
    if units > 0 then ticks = ticks + 1 end
    p.last = ticks
  end
end
local from = t
--@<arrival
p.ticks, p.units = ticks, units
--@@fresh
when = p.ticks
if p.units > 0 then when = when + 1 end
if when < p.last then when = p.last end
--@@dump
s = pack('<I8I8I8', p.ticks, p.units, p.last)
--@@beyond
t = now
if p.last > now and not p.queue then t = p.last end
--@@room
local from = t
--@<arrival
room = ticks < LAST or ticks == LAST and units == 0
if not room then -- but what is granted now is possible
  ticks = ticks - t
  room = ticks < p.spanTicks or ticks == p.spanTicks and units <= p.spanUnits
end
--@@markSize
p.markSize, form, levels = 16, form .. 'I8I8', true
--@@missing
-- sets ticks and units to what is missing at t, or at the instant of a reservation ahead
local ticks, units = p.ticks - t, p.units
if p.last > t and not p.queue then ticks = p.ticks - p.last end
if ticks < 0 then ticks, units = 0, 0 end
--@@mark
--@<missing
ticks, units = ticks + p.costTicks, units + p.costUnits
if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
mark = pack('<I8I8', ticks, units)
--@@passMark
--@<missing
local least, rest = unpack('<I8I8', mark)
if ticks < least or ticks == least and units < rest then mark = pack('<I8I8', ticks, units) end
--@@leasts
-- the least that was missing since each hold
--@<words
--@<missing
local each = size / 8
local k, a = #out, #words - each + (p.markAt + 7) / 8
if ticks < words[a] or ticks == words[a] and units < words[a + 1] then words[a], words[a + 1] = ticks, units end
p.leastTicks, p.leastUnits, p.backTicks, p.backUnits = {}, {}, 0, 0
for i = #list / size, out[1], -1 do
  local least, rest = words[a], words[a + 1]
  if least < ticks or least == ticks and rest < units then ticks, units = least, rest end
  if i == out[k] then
    p.leastTicks[k], p.leastUnits[k], k = ticks, units, k - 1
  end
  a = a - each
end
p.merged = pack('<I8I8', ticks, units)
--@@costOf
-- sets ticks and units to the cost of n events
local more = 0
ticks, units = n * p.oneTicks, n * p.oneUnits
if units < 9007199254740992 then
  more = floor(units / p.unit)
  units = units - more * p.unit
else
  --@<wide
  local high, low = product(n, p.oneUnits, 0)
  more, units = divide(high, low, p.unit, n)
end
ticks = ticks + more
--@@costs
local ticks, units
--@<costOf
p.costTicks, p.costUnits = ticks, units
--@@refunds
-- the cost of the unused events, or more than can be missing
local backTicks, backUnits
do
  local n, ticks, units = unused
  --@<costOf
  backTicks, backUnits = ticks, units
end
-- but not more than was missing since, without what has come back of older holds
local ticks, units = p.leastTicks[k] - p.backTicks, p.leastUnits[k] - p.backUnits
if units < 0 then ticks, units = ticks - 1, units + p.unit end
if ticks < backTicks or ticks == backTicks and units < backUnits then backTicks, backUnits = ticks, units end
p.backTicks, p.backUnits = p.backTicks + backTicks, p.backUnits + backUnits
if p.backUnits >= p.unit then p.backTicks, p.backUnits = p.backTicks + 1, p.backUnits - p.unit end
p.leastTicks[k], p.leastUnits[k] = p.backTicks, p.backUnits -- what has come back since
ticks, units = p.ticks - backTicks, p.units - backUnits
if units < 0 then ticks, units = ticks - 1, units + p.unit end
if ticks < 0 then ticks, units = 0, 0 end
if p.queue then -- the turns told end earlier, too; see leakybucket.go
  local over, left = p.ticks, ticks
  if p.units > 0 then over = over + 1 end
  if units > 0 then left = left + 1 end
  if p.last > over then p.last = p.last - backTicks elseif p.last > left then p.last = left end
end
p.ticks, p.units = ticks, units
--@@lower
-- What has come back is missing no more since. The mark of a hold that has ended stands for the time
-- since the next older one.
local each = size / 8
local k, a, backTicks, backUnits, kept = 1, (out[1] - 1) * each + (p.markAt + 7) / 8, 0, 0
if out[1] > 1 then kept = a - each end
for i = out[1], #list / size do
  local gone = i == out[k]
  if gone then
    backTicks, backUnits, k = p.leastTicks[k], p.leastUnits[k], k + 1
  end
  local least, rest = words[a] - backTicks, words[a + 1] - backUnits
  if rest < 0 then least, rest = least - 1, rest + p.unit end
  if not gone then
    words[a], words[a + 1], kept = least, rest, a
  elseif kept and (least < words[kept] or least == words[kept] and rest < words[kept + 1]) then
    words[kept], words[kept + 1] = least, rest
  end
  a = a + each
end
