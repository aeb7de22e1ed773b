-- The state of SlidingWindow and RollingWindow: the latest instant at which events were
-- spent, its mark, the sum of all counts if there are more than two, and the counts of
-- events of the latest p.slots slots. The count of slot i is at place i % p.slots. Most
-- decisions need one or two of them, so they stay in the state, p.old, and are unpacked when
-- they are needed. Only one is outside, p.count, whose place is p.place: that of the latest
-- slot, except in undoHelp. p.old has it as well, until a count is changed. From then on the
-- others are in p.before and p.after, those of the places before and after p.place, so that
-- a grant copies them once.
--@@help
-- the count at a place
local function count(p, place)
  if place == p.place then return p.count end
  if not p.before then return (unpack(p.form, p.old, p.head + place * p.size)) end
  if place < p.place then return (unpack(p.form, p.before, place * p.size + 1)) end
  return (unpack(p.form, p.after, (place - p.place - 1) * p.size + 1))
end
--@@join
if p.before then
  p.old, p.before = rep('\0', p.head - 1) .. p.before .. pack(p.form, p.count) .. p.after, nil
end
--@@split
if not p.before then
  local at = p.head + p.place * p.size
  p.before, p.after = sub(p.old, p.head, at - 1), sub(p.old, at + p.size)
end
--@@turn
-- sets slot to that of when, ahead to how many slots it is after the latest, and total to
-- the events in the ring then
local slot, total = floor(when / p.length), p.sum
local ahead = slot - p.latest
if ahead >= p.slots then
  total = 0
else
  for i = p.latest + 1, slot do total = total - count(p, i % p.slots) end
end
p.turned, p.total = slot, total -- for spend
--@@open
p.slots, p.length, p.most, p.perSlot, p.size, pos = unpack('<ddddB', request, pos)
p.head, p.form = 9, '<I4' -- where the counts begin, and how each is packed
if p.size == 8 then p.form = '<I8' end
if p.slots > 2 then p.head = 17 end
p.width = p.head - 1 + ceil(p.slots * p.size / 8) * 8
--@@load
p.frontier, p.mark, p.latest, p.place, p.count, p.sum = 0, 0, 0, 0, 0, 0
p.old, p.before = s, nil
if s == '' then
  p.old = rep('\0', p.width)
else
  if p.slots > 2 then
    p.frontier, p.mark, p.sum = unpack('<I7BI8', s)
  else
    p.frontier, p.mark = unpack('<I7B', s)
  end
  p.latest = floor(p.frontier / p.length)
  p.place = p.latest % p.slots
  p.count = unpack(p.form, s, p.head + p.place * p.size)
  if p.slots <= 2 then p.sum = p.count end
  if p.slots == 2 then p.sum = p.sum + count(p, 1 - p.place) end
end
--@@spend
local slot = floor(t / p.length)
if slot == p.latest then
  --@<split
else
  --@<join
  local many, place = slot - p.latest, slot % p.slots
  local at, size = p.head + place * p.size, p.size
  local last = p.head + (p.place + 1) * size - 1 -- the last byte of the count of the latest slot
  if many >= p.slots then
    p.before, p.after, p.sum = rep('\0', at - p.head), rep('\0', p.width + 1 - at - size), 0
  else -- the slots after the latest leave the ring
    if slot == p.turned then
      p.sum = p.total
    else
      for i = p.latest + 1, slot do p.sum = p.sum - count(p, i % p.slots) end
    end
    if place > p.place then
      p.before, p.after = sub(p.old, p.head, last), sub(p.old, at + size)
      if many > 1 then p.before = p.before .. rep('\0', (many - 1) * size) end
    else
      p.before, p.after = rep('\0', at - p.head), sub(p.old, at + size, last) .. rep('\0', p.width - last)
    end
  end
  p.latest, p.place, p.count = slot, place, 0
end
if p.frontier <= now then p.mark = 0 end
p.frontier, p.count, p.sum = t, p.count + n, p.sum + n
--@@fresh
when = p.frontier
if p.sum > 0 then
  local slot = p.latest
  while count(p, slot % p.slots) == 0 do slot = slot - 1 end
  when = max(when, (slot + p.slots) * p.length)
end
--@@leave
local when = max(p.frontier, now)
--@<turn
p.used, p.slotsWas, p.lengthWas, p.left = total, p.slots, p.length, {}
for i = 0, p.slots - 1 do p.left[i] = count(p, i) end
--@@adopt
local largest = 9007199254740992 -- 2^53
p.before = nil
if p.size == 4 then largest = 4294967295 end
if p.slots == p.slotsWas and p.length == p.lengthWas then
  local packed = {}
  p.sum = 0
  for i = 0, p.slots - 1 do
    p.left[i] = min(p.left[i], largest)
    p.sum, packed[i + 1] = p.sum + p.left[i], pack(p.form, p.left[i])
  end
  p.old = rep('\0', p.head - 1) .. table.concat(packed)
  p.old = p.old .. rep('\0', p.width - #p.old)
  p.count = p.left[p.place]
else
  p.frontier = max(p.frontier, now)
  p.latest = floor(p.frontier / p.length)
  p.place, p.count = p.latest % p.slots, min(p.used, largest)
  p.before, p.sum = rep('\0', p.place * p.size), p.count
  p.after = rep('\0', p.width + 1 - p.head - (p.place + 1) * p.size)
end
--@@dump
--@<split
if p.slots > 2 then
  s = pack('<I7BI8', p.frontier, p.mark, p.sum) .. p.before .. pack(p.form, p.count) .. p.after
else
  s = pack('<I7B', p.frontier, p.mark) .. p.before .. pack(p.form, p.count) .. p.after
end
--@@undoHelp
local function latest(p) return floor(p.frontier / p.length) end

-- the number of events in a slot
local function within(p, slot)
  local l = latest(p)
  if slot < 0 or slot > l or slot <= l - p.slots then return 0 end
  return count(p, slot % p.slots)
end

-- sets the count at a place
local function put(p, place, n)
  if p.before then
    p.old, p.before = rep('\0', p.head - 1) .. p.before .. pack(p.form, p.count) .. p.after, nil
  end
  if place ~= p.place then
    local at = p.head + p.place * p.size
    p.old = sub(p.old, 1, at - 1) .. pack(p.form, p.count) .. sub(p.old, at + p.size)
    p.count = unpack(p.form, p.old, p.head + place * p.size)
    p.place = place
  end
  p.count, p.sum = n, p.sum + n - p.count
end

-- leaves undoHelp
local function leave(p)
  p.latest = latest(p)
  local place = p.latest % p.slots
  put(p, place, count(p, place))
  local at = p.head + place * p.size
  p.before, p.after = sub(p.old, p.head, at - 1), sub(p.old, at + p.size)
end
--@@giveBack
local slot = floor(taken / p.length)
if p.frontier > now and slot == floor(now / p.length) then p.mark = 128 end -- see ringcancel.go
local there = within(p, slot)
if there >= n then put(p, slot % p.slots, there - n) end
leave(p)
--@@beyond
t = max(now, p.frontier)
--@@room
local when = t
--@<turn
local used = total
if p.size == 4 then used = 0 end
if p.size == 4 and ahead == 0 then used = count(p, slot % p.slots) end
room = used + n <= (p.size == 4 and 4294967295 or COUNTS)
--@@refund
local slot = floor(taken / p.length)
local there
if slot == p.latest then there = p.count else there = within(p, slot) end
if there >= held then
  if p.frontier > now and slot >= floor(now / p.length) then p.mark = 128 end -- see ringcancel.go
  if slot == p.latest then
    --@<split
    p.count, p.sum = there - n, p.sum - n
  else
    put(p, slot % p.slots, there - n)
    leave(p)
  end
  changed = true
end
