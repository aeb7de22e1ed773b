-- WarmingUp. The state is the warmth, and the next free time as whole microseconds and
-- nanoseconds. The operations and their order are the same as in warmingup.go, so that they
-- give the same doubles.
--@@help
local function coldAt(p)
  return p.free + ceil((p.ns + ceil(p.warmth * p.cooldown)) / 1000)
end
--@@open
p.stable, p.slope, p.threshold, p.stored, p.cooldown, pos = unpack('<ddddd', request, pos)
p.width = 24
--@@load
if s == '' then p.warmth, p.free, p.ns = 0, 0, 0 else p.warmth, p.free, p.ns = unpack('<dI8I8', s) end
--@@remains
-- sets warmth to what remains of it at t
local warmth = 0
if t < coldAt(p) then
  warmth = p.warmth
  local idle = (t - p.free) * 1000 - p.ns
  if idle > 0 then warmth = warmth - idle / p.cooldown end
  warmth = max(0, warmth)
end
--@@ready
when = p.free
if p.ns > 0 then when = when + 1 end
if when < t then when = t end
--@@spend
--@<remains
local stored = p.stored - warmth
local taken = min(n, stored)
local cost = taken * p.stable
local above = stored - p.threshold
if above > 0 then
  local part = min(taken, above)
  cost = cost + p.slope * part * (above - part / 2)
end
cost = cost + (n - taken) * p.stable
local ns = floor(cost) -- rounded half up
if cost - ns >= 0.5 then ns = ns + 1 end
p.warmth, p.free, p.ns = warmth + taken, t + floor(ns / 1000), ns % 1000
--@@fresh
when = coldAt(p)
--@@leave
local t = p.free
if p.ns > 0 then t = t + 1 end
t = max(t, now)
--@<remains
p.share = min(warmth / p.stored, 1)
--@@adopt
p.warmth = p.share * p.stored
if p.free < now then p.free, p.ns = now, 0 end
--@@dump
s = pack('<dI8I8', p.warmth, p.free, p.ns)
