-- What SlidingWindow and RollingWindow share: the latest instant that events were
-- spent at, its mark, and the events of the last slots; slot i is at i % p.slots.
local ring = {}

-- numbers are read and written a few hundred at once
local function chunks(slots, f)
  for from = 0, slots - 1, 256 do f(from, min(256, slots - from)) end
end

function ring.open(p, params, at)
  p.slots, p.length, p.most, p.perSlot, p.size, at = unpack('<ddddB', params, at)
  p.format = 'I' .. p.size
  p.width = 8 + ceil(p.slots * p.size / 8) * 8
  return at
end

function ring.load(p, s)
  local c = {}
  p.counts = c
  if s == '' then
    p.frontier, p.mark = 0, 0
    for i = 0, p.slots - 1 do c[i] = 0 end
    return
  end
  p.frontier, p.mark = unpack('<I7B', s)
  chunks(p.slots, function(from, n)
    local t = {unpack('<' .. string.rep(p.format, n), s, 9 + from * p.size)}
    for i = 1, n do c[from + i - 1] = t[i] end
  end)
end

function ring.dump(p)
  local c, out = p.counts, {pack('<I7B', p.frontier, p.mark)}
  chunks(p.slots, function(from, n)
    out[#out + 1] = pack('<' .. string.rep(p.format, n), _G.unpack(c, from, from + n - 1))
  end)
  if p.size == 4 and p.slots % 2 == 1 then out[#out + 1] = '\0\0\0\0' end
  return table.concat(out)
end

local function latest(p) return floor(p.frontier / p.length) end

-- the events in a slot
local function at(p, slot)
  local l = latest(p)
  if slot < 0 or slot > l or slot <= l - p.slots then return 0 end
  return p.counts[slot % p.slots]
end

-- the events in the slots from one to another
local function sum(p, from, to)
  local l, n = latest(p), 0
  for slot = max(from, l - p.slots + 1, 0), min(to, l) do
    n = n + p.counts[slot % p.slots]
  end
  return n
end

function ring.fresh(p)
  local l = latest(p)
  for back = 0, p.slots - 1 do
    if p.counts[(l - back) % p.slots] > 0 then
      return max(p.frontier, (l - back + p.slots) * p.length)
    end
  end
  return p.frontier
end

function ring.spend(p, t, n)
  local slot, l = floor(t / p.length), latest(p)
  if p.mark ~= 0 and ring.fresh(p) <= t then p.mark = 0 end
  for i = 0, min(slot - l, p.slots) - 1 do
    p.counts[(slot - i) % p.slots] = 0
  end
  p.frontier = t
  p.counts[slot % p.slots] = p.counts[slot % p.slots] + n
end
