-- TokenBucket and LeakyBucket: the instant at which the bucket is full (empty)
-- again, as whole microseconds and units of which there are p.unit in one; and the
-- latest instant that events were spent at.
--@@open
p.unit, p.spanTicks, p.spanUnits, pos = unpack('<ddd', request, pos)
p.width, p.queue = 24, p.kind == 2
--@@load
p.ticks, p.units, p.last = 0, 0, 0
if s ~= '' then p.ticks, p.units, p.last = unpack('<I8I8I8', s) end
--@@arrival
-- that instant after events which cost what they cost were spent at from
local ticks, units = p.ticks, p.units
if ticks < from then ticks, units = from, 0 end
ticks, units = ticks + p.costTicks, units + p.costUnits
if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
--@@ready
local from = max(t, p.last)
--@<arrival
when = ticks - p.spanTicks
if units > p.spanUnits then when = when + 1 end -- rounded up
if when < from then when = from end
--@@hold
when = p.ticks - t
if p.units > 0 then when = when + 1 end
if when < 0 then when = 0 end
--@@spend
local from = t
--@<arrival
p.ticks, p.units = ticks, units
p.last = t
--@@fresh
when = p.ticks
if p.units > 0 then when = when + 1 end
if when < p.last then when = p.last end
--@@dump
s = pack('<I8I8I8', p.ticks, p.units, p.last)
