-- The state of SlidingWindow and RollingWindow: the latest instant at which events were
-- spent, its mark, the sum of all counts if there are more than two, and the counts of
-- events of the latest p.slots slots. The count of slot i is at place i % p.slots. Most
-- decisions need one or two of them. So counts are read from the state when they are
-- needed, and p.counts has those that were changed. p.old is the state as it was.
--@@help
local CHUNK = 256 -- how many counts are packed or unpacked in one call
local FEW = 8 -- how many counts are replaced in a state one by one

local function latest(p) return floor(p.frontier / p.length) end

-- the count at a place
local function count(p, place)
  local n = p.counts[place]
  if n then return n end
  if p.old == '' then return 0 end
  return (unpack(p.form, p.old, p.head + place * p.size))
end

-- sets the count at a place
local function put(p, place, n)
  p.sum = p.sum + n - count(p, place)
  if not p.counts[place] then p.changes = p.changes + 1 end
  p.counts[place] = n
end

-- makes all counts 0
local function clear(p)
  p.old, p.counts, p.changes, p.sum = '', {}, 0, 0
end

-- the number of events in a slot
local function within(p, slot)
  local l = latest(p)
  if slot < 0 or slot > l or slot <= l - p.slots then return 0 end
  return count(p, slot % p.slots)
end

-- the number of events in the slots that are in the ring at a slot, which is not before the
-- latest
local function sum(p, slot)
  local l, n = latest(p), p.sum
  if slot - l >= p.slots then return 0 end
  for i = l + 1, slot do n = n - count(p, i % p.slots) end
  return n
end

local function ringFresh(p)
  local l = latest(p)
  if p.sum == 0 then return p.frontier end
  for back = 0, p.slots - 1 do
    if count(p, (l - back) % p.slots) > 0 then
      return max(p.frontier, (l - back + p.slots) * p.length)
    end
  end
end

-- the counts as a string
local function packCounts(p)
  local width = p.width - p.head + 1
  local from = p.old == '' and string.rep('\0', width) or sub(p.old, p.head)
  if p.changes <= FEW then
    for place, n in pairs(p.counts) do
      local at = place * p.size
      from = sub(from, 1, at) .. pack(p.form, n) .. sub(from, at + p.size + 1)
    end
    return from
  end
  local s = ''
  for first = 0, p.slots - 1, CHUNK do
    local k = min(CHUNK, p.slots - first)
    local form = '<' .. string.rep('I' .. p.size, k)
    local t = {unpack(form, from, 1 + first * p.size)}
    for i = 1, k do t[i] = p.counts[first + i - 1] or t[i] end
    s = s .. pack(form, spread(t, 1, k))
  end
  if p.size == 4 and p.slots % 2 == 1 then s = s .. '\0\0\0\0' end
  return s
end
--@@open
p.slots, p.length, p.most, p.perSlot, p.size, pos = unpack('<ddddB', request, pos)
p.head, p.form = 9, p.size == 4 and '<I4' or '<I8' -- where the counts begin, and how each is packed
if p.slots > 2 then p.head = 17 end
p.width = p.head - 1 + ceil(p.slots * p.size / 8) * 8
--@@load
p.frontier, p.mark = 0, 0
clear(p)
p.old = s
if s ~= '' then
  p.frontier, p.mark = unpack('<I7B', s)
  if p.slots > 2 then
    p.sum = unpack('<I8', s, 9)
  else
    p.sum = count(p, 0)
    if p.slots == 2 then p.sum = p.sum + count(p, 1) end
  end
end
--@@spend
local slot, l = floor(t / p.length), latest(p)
if p.frontier <= now then p.mark = 0 end
if slot - l >= p.slots then
  clear(p)
else
  for i = l + 1, slot do put(p, i % p.slots, 0) end
end
p.frontier = t
put(p, slot % p.slots, count(p, slot % p.slots) + n)
--@@fresh
when = ringFresh(p)
--@@leave
p.used = sum(p, floor(max(p.frontier, now) / p.length))
p.slotsWas, p.lengthWas, p.left = p.slots, p.length, {}
for i = 0, p.slots - 1 do p.left[i] = count(p, i) end
--@@adopt
local largest = 9007199254740992 -- 2^53
if p.size == 4 then largest = 4294967295 end
clear(p)
if p.slots == p.slotsWas and p.length == p.lengthWas then
  for i = 0, p.slots - 1 do put(p, i, min(p.left[i], largest)) end
else
  p.frontier = max(p.frontier, now)
  put(p, floor(p.frontier / p.length) % p.slots, min(p.used, largest))
end
--@@dump
s = pack('<I7B', p.frontier, p.mark)
if p.slots > 2 then s = s .. pack('<I8', p.sum) end
s = s .. packCounts(p)
--@@giveBack
local slot = floor(taken / p.length)
if p.frontier > now and slot == floor(now / p.length) then p.mark = 128 end -- see ringcancel.go
local there = within(p, slot)
if there >= n then put(p, slot % p.slots, there - n) end
