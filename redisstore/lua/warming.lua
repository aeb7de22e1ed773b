-- WarmingUp: the warmth, and the next free time as whole microseconds and the
-- nanoseconds beyond. The same operations in the same order as in warmingup.go, so
-- that the same doubles come of them.
local warming = {}

function warming.open(p, params, at)
  p.stable, p.slope, p.threshold, p.stored, p.cooldown, at = unpack('<ddddd', params, at)
  p.width = 24
  return at
end

function warming.load(p, s)
  if s == '' then p.warmth, p.free, p.ns = 0, 0, 0 else p.warmth, p.free, p.ns = unpack('<dI8I8', s) end
end

function warming.ready(p, now)
  if p.ns > 0 then return max(now, p.free + 1) end
  return max(now, p.free)
end

function warming.fresh(p)
  return p.free + ceil((p.ns + ceil(p.warmth * p.cooldown)) / 1000)
end

function warming.spend(p, at, n)
  local warmth = 0
  if at < warming.fresh(p) then
    warmth = p.warmth
    local idle = (at - p.free) * 1000 - p.ns
    if idle > 0 then warmth = warmth - idle / p.cooldown end
    warmth = max(0, warmth)
  end
  local stored = p.stored - warmth
  local taken = min(n, stored)
  local cost = taken * p.stable
  local above = stored - p.threshold
  if above > 0 then
    local part = min(taken, above)
    cost = cost + p.slope * part * (above - part / 2)
  end
  cost = cost + (n - taken) * p.stable
  local ns = floor(cost) -- rounded, half up
  if cost - ns >= 0.5 then ns = ns + 1 end
  p.warmth, p.free, p.ns = warmth + taken, at + floor(ns / 1000), ns % 1000
end

function warming.dump(p) return pack('<dI8I8', p.warmth, p.free, p.ns) end

K[8] = warming
