-- The state of SlidingWindow and RollingWindow: the latest instant at which events were
-- spent, the sum of all counts if there are more than two, and the counts of
-- events of the latest p.slots slots. The count of slot i is at place i % p.slots. Most
-- decisions need one or two of them, so they stay in the state, p.old, and are unpacked when
-- they are needed. Only one is outside, p.count, whose place is p.place: that of the latest
-- slot, except in settleHelp. p.old has it as well, until a count is changed. From then on the
-- others are in p.before and p.after, those of the places before and after p.place, so that
-- a grant copies them once.
--@@count
-- sets c to the count at a place
local c = p.count
if place ~= p.place then
  if not p.before then
    c = unpack(p.form, p.old, p.head + place * p.size)
  elseif place < p.place then
    c = unpack(p.form, p.before, place * p.size + 1)
  else
    c = unpack(p.form, p.after, (place - p.place - 1) * p.size + 1)
  end
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
local slot, total = (when - when % p.length) / p.length, p.sum
local ahead = slot - p.latest
if ahead >= p.slots then
  total = 0
else
  for i = p.latest + 1, slot do
    local place = i % p.slots
    --@<count
    total = total - c
  end
end
p.turned, p.total = slot, total -- for spend
--@@open
p.slots, p.length, p.most, p.perSlot, p.size, pos = unpack('<ddddB', request, pos)
p.head, p.form = 9, '<I4' -- where the counts begin, and how each is packed
if p.size == 8 then p.form = '<I8' end
if p.slots > 2 then p.head = 17 end
p.width = p.head - 1 + p.slots * p.size
p.width = p.width + -p.width % 8
--@@load
p.frontier, p.latest, p.place, p.count, p.sum = 0, 0, 0, 0, 0
p.old, p.before = s, nil
if s == '' then
  p.old = rep('\0', p.width)
else
  if p.slots > 2 then
    p.frontier, p.sum = unpack('<I7xI8', s) -- the eighth byte is a flag that earlier versions have stored
  else
    p.frontier = unpack('<I7', s)
  end
  p.latest = (p.frontier - p.frontier % p.length) / p.length
  p.place = p.latest % p.slots
  p.count = unpack(p.form, s, p.head + p.place * p.size)
  if p.slots <= 2 then p.sum = p.count end
  if p.slots == 2 then p.sum = p.sum + unpack(p.form, s, p.head + (1 - p.place) * p.size) end
end
--@@spend
local slot = (t - t % p.length) / p.length
if slot ~= p.latest then -- the slots after the latest leave the ring
  --@<join
  if slot ~= p.turned then
    local when = t
    --@<turn
  end
  local place = slot % p.slots
  if p.total < p.sum then -- otherwise their counts are 0
    local from, to = p.head + (p.latest + 1) % p.slots * p.size, p.head + (place + 1) * p.size
    if slot - p.latest >= p.slots then
      p.old = rep('\0', p.width)
    elseif from < to then
      p.old = sub(p.old, 1, from - 1) .. rep('\0', to - from) .. sub(p.old, to)
    else
      p.old = rep('\0', to - 1) .. sub(p.old, to, from - 1) .. rep('\0', p.width + 1 - from)
    end
  end
  p.latest, p.place, p.count, p.sum = slot, place, 0, p.total
end
--@<split
p.frontier, p.count, p.sum = t, p.count + n, p.sum + n
--@@fresh
when = p.frontier
if p.sum > 0 then
  local slot, found = p.latest, p.count
  while found == 0 do
    slot = slot - 1
    local place = slot % p.slots
    --@<count
    found = c
  end
  slot = (slot + p.slots) * p.length
  if slot > when then when = slot end
end
--@@dump
--@<split
if p.slots > 2 then
  s = pack('<I8I8', p.frontier, p.sum) .. p.before .. pack(p.form, p.count) .. p.after
else
  s = pack('<I8', p.frontier) .. p.before .. pack(p.form, p.count) .. p.after
end
--@@settleHelp
local function count(p, place)
  --@<count
  return c
end

local function latest(p) return floor(p.frontier / p.length) end

-- the number of events in a slot
local function within(p, slot)
  local l = latest(p)
  if slot < 0 or slot > l or slot <= l - p.slots then return 0 end
  return count(p, slot % p.slots)
end

-- sets the count at a place
local function put(p, place, n)
  --@<join
  if place ~= p.place then
    local at = p.head + p.place * p.size
    p.old = sub(p.old, 1, at - 1) .. pack(p.form, p.count) .. sub(p.old, at + p.size)
    p.count = unpack(p.form, p.old, p.head + place * p.size)
    p.place = place
  end
  p.count, p.sum = n, p.sum + n - p.count
end

-- leaves settleHelp
local function leave(p)
  p.latest = latest(p)
  local place = p.latest % p.slots
  put(p, place, count(p, place))
  --@<split
end
--@@beyond
t = max(now, p.frontier)
--@@room
local when = t
--@<turn
local used = total
if p.size == 4 then used = 0 end
if p.size == 4 and ahead == 0 then used = p.count end
room = used + n <= (p.size == 4 and 4294967295 or COUNTS)
--@@markSize
p.markSize, form = 8, form .. 'd'
--@@mark
mark = pack('<I8', (t - t % p.length) / p.length + 1)
--@@refunds
local slot = unpack('<I8', mark) - 1
if slot >= 0 and unused > 0 then
  local there
  if slot == p.latest then there = p.count else there = within(p, slot) end
  if there >= unused then
    if slot == p.latest then
      --@<split
      p.count, p.sum = there - unused, p.sum - unused
    else
      put(p, slot % p.slots, there - unused)
      leave(p)
    end
  end
end
