-- TokenBucket and LeakyBucket: the instant at which the bucket is full (empty)
-- again, as whole microseconds and units of which there are p.unit in one.
--@@help
-- that instant after events which cost what they cost were spent at t
local function arrival(p, t)
  local ticks, units = p.ticks, p.units
  if ticks < t then ticks, units = t, 0 end
  ticks, units = ticks + p.costTicks, units + p.costUnits
  if units >= p.unit then return ticks + 1, units - p.unit end
  return ticks, units
end
--@@open
local unit, spanTicks, spanUnits
unit, spanTicks, spanUnits, at = unpack('<ddd', params, at)
p = {
  width = 16, unit = unit, spanTicks = spanTicks, spanUnits = spanUnits,
  ticks = 0, units = 0, costTicks = 0, costUnits = 0, s = '', kind = 0, queue = kind == 2,
}
--@@load
if s ~= '' then p.ticks, p.units = unpack('<I8I8', s) end
--@@ready
local ticks, units = arrival(p, t)
when = ticks - p.spanTicks
if units > p.spanUnits then when = when + 1 end -- rounded up
if when < t then when = t end
--@@hold
when = p.ticks - t
if p.units > 0 then when = when + 1 end
if when < 0 then when = 0 end
--@@spend
p.ticks, p.units = arrival(p, t)
--@@fresh
when = p.ticks
if p.units > 0 then when = when + 1 end
--@@dump
s = pack('<I8I8', p.ticks, p.units)
