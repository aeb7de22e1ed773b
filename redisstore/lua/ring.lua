-- The state of SlidingWindow and RollingWindow: the latest instant at which events were
-- spent, its mark, and the counts of events of the latest p.slots slots. The count of slot
-- i is at index i % p.slots.
--@@help
local CHUNK = 256 -- how many numbers are packed or unpacked in one call

local function latest(p) return floor(p.frontier / p.length) end

-- the number of events in a slot
local function within(p, slot)
  local l = latest(p)
  if slot < 0 or slot > l or slot <= l - p.slots then return 0 end
  return p.counts[slot % p.slots]
end

-- the number of events in the slots from .. to
local function sum(p, from, to)
  local l, n = latest(p), 0
  for slot = max(from, l - p.slots + 1, 0), min(to, l) do
    n = n + p.counts[slot % p.slots]
  end
  return n
end

local function ringFresh(p)
  local l = latest(p)
  for back = 0, p.slots - 1 do
    if p.counts[(l - back) % p.slots] > 0 then
      return max(p.frontier, (l - back + p.slots) * p.length)
    end
  end
  return p.frontier
end
--@@open
p.slots, p.length, p.most, p.perSlot, p.size, pos = unpack('<ddddB', request, pos)
p.width = 8 + ceil(p.slots * p.size / 8) * 8
--@@load
local c = {}
p.counts, p.frontier, p.mark = c, 0, 0
if s == '' then
  for i = 0, p.slots - 1 do c[i] = 0 end
else
  p.frontier, p.mark = unpack('<I7B', s)
  for from = 0, p.slots - 1, CHUNK do
    local k = min(CHUNK, p.slots - from)
    local t = {unpack('<' .. string.rep('I' .. p.size, k), s, 9 + from * p.size)}
    for i = 1, k do c[from + i - 1] = t[i] end
  end
end
--@@spend
local slot, l = floor(t / p.length), latest(p)
if p.frontier <= now then p.mark = 0 end
for i = 0, min(slot - l, p.slots) - 1 do
  p.counts[(slot - i) % p.slots] = 0
end
p.frontier = t
p.counts[slot % p.slots] = p.counts[slot % p.slots] + n
--@@fresh
when = ringFresh(p)
--@@leave
local slot = floor(max(p.frontier, now) / p.length)
p.used = sum(p, slot - p.slots + 1, slot)
p.slotsWas, p.lengthWas = p.slots, p.length
--@@adopt
local largest = 9007199254740992 -- 2^53
if p.size == 4 then largest = 4294967295 end
if p.slots == p.slotsWas and p.length == p.lengthWas then
  for i = 0, p.slots - 1 do p.counts[i] = min(p.counts[i], largest) end
else
  p.frontier = max(p.frontier, now)
  for i = 0, p.slots - 1 do p.counts[i] = 0 end
  p.counts[floor(p.frontier / p.length) % p.slots] = min(p.used, largest)
end
--@@dump
s = pack('<I7B', p.frontier, p.mark)
for from = 0, p.slots - 1, CHUNK do
  local k = min(CHUNK, p.slots - from)
  s = s .. pack('<' .. string.rep('I' .. p.size, k), spread(p.counts, from, from + k - 1))
end
if p.size == 4 and p.slots % 2 == 1 then s = s .. '\0\0\0\0' end
--@@giveBack
local slot = floor(taken / p.length)
if p.frontier > now and slot == floor(now / p.length) then p.mark = 128 end -- see ringcancel.go
local count = within(p, slot)
if count >= n then p.counts[slot % p.slots] = count - n end
