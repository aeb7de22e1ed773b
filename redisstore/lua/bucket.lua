-- TokenBucket and LeakyBucket: the instant at which the bucket is full (empty)
-- again, as whole microseconds and units of which there are p.unit in one.
local function arrival(p, at)
  local ticks, units = p.ticks, p.units
  if ticks < at then ticks, units = at, 0 end
  ticks, units = ticks + p.costTicks, units + p.costUnits
  if units >= p.unit then return ticks + 1, units - p.unit end
  return ticks, units
end

local bucket = {cost = true}

function bucket.open(p, params, at)
  p.unit, p.spanTicks, p.spanUnits, at = unpack('<ddd', params, at)
  p.width = 16
  return at
end

function bucket.load(p, s)
  if s == '' then p.ticks, p.units = 0, 0 else p.ticks, p.units = unpack('<I8I8', s) end
end

function bucket.ready(p, now)
  local ticks, units = arrival(p, now)
  ticks, units = ticks - p.spanTicks, units - p.spanUnits
  if units > 0 then ticks = ticks + 1 end -- rounded up; down to 0 from below it
  return max(now, ticks)
end

function bucket.spend(p, at) p.ticks, p.units = arrival(p, at) end

function bucket.fresh(p)
  if p.units > 0 then return p.ticks + 1 end
  return p.ticks
end

function bucket.dump(p) return pack('<I8I8', p.ticks, p.units) end

K[1] = bucket
