-- TokenBucket and LeakyBucket: the instant at which the bucket is full (empty)
-- again, as whole microseconds and units of which there are p.unit in one.
--@@open
p.unit, p.spanTicks, p.spanUnits, pos = unpack('<ddd', request, pos)
p.width, p.queue = 16, p.kind == 2
--@@load
if s == '' then p.ticks, p.units = 0, 0 else p.ticks, p.units = unpack('<I8I8', s) end
--@@arrival
-- that instant after events which cost what they cost were spent at t
local ticks, units = p.ticks, p.units
if ticks < t then ticks, units = t, 0 end
ticks, units = ticks + p.costTicks, units + p.costUnits
if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
--@@ready
--@<arrival
when = ticks - p.spanTicks
if units > p.spanUnits then when = when + 1 end -- rounded up
if when < t then when = t end
--@@hold
when = p.ticks - t
if p.units > 0 then when = when + 1 end
if when < 0 then when = 0 end
--@@spend
--@<arrival
p.ticks, p.units = ticks, units
--@@fresh
when = p.ticks
if p.units > 0 then when = when + 1 end
--@@dump
s = pack('<I8I8', p.ticks, p.units)
