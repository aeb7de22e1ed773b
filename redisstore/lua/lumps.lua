-- TokenBucket with RefillInterval: where the lumps are counted from, and the
-- tokens missing then.
local lumps = {}

function lumps.open(p, params, at)
  p.burst, p.lump, p.per, at = unpack('<ddd', params, at)
  p.width = 16
  return at
end

function lumps.load(p, s)
  if s == '' then p.anchor, p.missing = 0, 0 else p.anchor, p.missing = unpack('<I8I8', s) end
end

local function refilled(p, t)
  local came = floor((t - p.anchor) / p.per)
  if came >= ceil(p.missing / p.lump) then return t, 0 end
  return p.anchor + came * p.per, p.missing - came * p.lump
end

function lumps.ready(p, now, n)
  now = max(now, p.anchor)
  local anchor, missing = refilled(p, now)
  if missing + n <= p.burst then return now end
  return anchor + ceil((missing + n - p.burst) / p.lump) * p.per
end

function lumps.spend(p, at, n)
  p.anchor, p.missing = refilled(p, at)
  p.missing = p.missing + n
end

function lumps.fresh(p) return p.anchor + ceil(p.missing / p.lump) * p.per end

function lumps.dump(p) return pack('<I8I8', p.anchor, p.missing) end

K[3] = lumps
