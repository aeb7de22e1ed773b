-- FixedWindow: the start of the window, its mark, and the events in it.
local fixed = {}

function fixed.open(p, params, at)
  p.most, p.length, p.aligned, at = unpack('<ddB', params, at)
  p.width = 16
  return at
end

function fixed.load(p, s)
  if s == '' then p.start, p.mark, p.count = 0, 0, 0 else p.start, p.mark, p.count = unpack('<I7BI8', s) end
end

local function window(p, t)
  if p.count > 0 and t < p.start + p.length then return p.start, p.count end
  if p.aligned == 1 then return t - t % p.length, 0 end
  return t, 0
end

function fixed.ready(p, now, n)
  now = max(now, p.start)
  local start, count = window(p, now)
  if count + n <= p.most then return now end
  return start + p.length
end

function fixed.fresh(p)
  if p.count == 0 then return p.start end
  return p.start + p.length
end

function fixed.spend(p, at, n)
  local start, count = window(p, at)
  if fixed.fresh(p) <= at then p.mark = 0 end
  p.start, p.count = start, count + n
end

function fixed.dump(p) return pack('<I7BI8', p.start, p.mark, p.count) end

K[4] = fixed
