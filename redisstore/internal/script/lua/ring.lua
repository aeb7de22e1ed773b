-- What SlidingWindow and RollingWindow share: sliding.lua and rolling.lua have their block ready.
-- take.lua describes the blocks.
--
-- Constants: the number of slots, their length, the limit, that of a slot, and the bytes of a
-- count. State: the latest instant at which events were spent, the sum of all counts if there are
-- more than two, and the counts of events of the latest slots. The count of slot i is at place i %
-- slots. Most decisions need one or two of them, so they stay in the state, old, and are unpacked
-- when they are needed. If the value is damaged, so that the sum is not that of the counts, a search
-- for a slot fails at the end of the ring: a script that fails has changed nothing, and the process
-- finds the same when it reads the value. Only one count is outside, latestCount: that of the latest
-- slot, whose place is latestPlace. old has it as well, until a count is changed. From then on the
-- others are in head and tail, those of the places before and after latestPlace, so that a grant
-- copies them once.
--# opening
local _, slots, length, limit, perSlot, bytes, now, op, times, n, wait, pos =
  unpack('<BddddBdBI4dd', request)
--# constants
local slots, length, limit, perSlot, bytes
slots, length, limit, perSlot, bytes, pos = unpack('<ddddB', request, pos)
--# traits
width = width,
markSize = 8, markForm = 'd',
--# state
local begin, form = 9, '<I4' -- where the counts begin, and how each is packed
if bytes == 8 then form = '<I8' end
if slots > 2 then begin = 17 end
local width = begin - 1 + slots * bytes
width = width + -width % 8
local frontier, latest, latestPlace, latestCount, sum -- latest is the latest slot
local old, head, tail
local turnedTo, totalThen -- the slot and total that turn has found last, in this state
--# fits
fits = #s == width
--# load
frontier, latest, latestPlace, latestCount, sum = 0, 0, 0, 0, 0
old, head, turnedTo = s, nil, nil
if s == '' then
  old = string.rep('\0', width)
else
  if slots > 2 then
    frontier, sum = unpack('<I7xI8', s) -- the eighth byte is a flag that earlier versions have stored
  else
    frontier = unpack('<I7', s)
  end
  latest = (frontier - frontier % length) / length
  latestPlace = latest % slots
  latestCount = unpack(form, s, begin + latestPlace * bytes)
  if slots <= 2 then sum = latestCount end
  if slots == 2 then sum = sum + unpack(form, s, begin + (1 - latestPlace) * bytes) end
end
--# count
-- Sets c to the count at place.
local c = latestCount
if place ~= latestPlace then
  if not head then
    c = unpack(form, old, begin + place * bytes)
  elseif place < latestPlace then
    c = unpack(form, head, place * bytes + 1)
  else
    c = unpack(form, tail, (place - latestPlace - 1) * bytes + 1)
  end
end
--# join
if head then
  old, head = string.rep('\0', begin - 1) .. head .. pack(form, latestCount) .. tail, nil
end
--# split
if not head then
  local at = begin + latestPlace * bytes
  head, tail = sub(old, begin, at - 1), sub(old, at + bytes)
end
--# turn
-- Sets slot to that of when, steps to how many slots it is after the latest, and total to the
-- events in the ring then. The last total is kept, because a decision that searches for the number
-- of events asks ready about one instant again and again.
local slot, total = (when - when % length) / length, totalThen
local steps = slot - latest
if slot ~= turnedTo then
  total = 0
  if steps < slots then
    total = sum
    for i = 1, steps do
      local place = (latest + i) % slots
      --@ count
      total = total - c
    end
  end
  turnedTo, totalThen = slot, total
end
--# spend
local when = t
--@ turn
if steps ~= 0 then -- the slots after the latest leave the ring
  --@ join
  local place = slot % slots
  if total < sum then -- otherwise their counts are 0
    local first, behind = begin + (latest + 1) % slots * bytes, begin + (place + 1) * bytes
    if steps >= slots then
      old = string.rep('\0', width)
    elseif first < behind then
      old = sub(old, 1, first - 1) .. string.rep('\0', behind - first) .. sub(old, behind)
    else
      old = string.rep('\0', behind - 1) .. sub(old, behind, first - 1) .. string.rep('\0', width + 1 - first)
    end
  end
  latest, latestPlace, latestCount, sum = slot, place, 0, total
end
--@ split
frontier, latestCount, sum, turnedTo = t, latestCount + n, sum + n, nil
--# fresh
when = frontier
if sum > 0 then
  local back, found = 0, latestCount -- a damaged slot may be too large to count in
  while found == 0 do
    back = back + 1
    if back >= slots then error('the sum is not that of the counts') end
    local place = (latest - back) % slots
    --@ count
    found = c
  end
  local last = (latest - back + slots) * length
  if last > when then when = last end
end
--# dump
--@ split
if slots > 2 then
  s = pack('<I8I8', frontier, sum) .. head .. pack(form, latestCount) .. tail
else
  s = pack('<I8', frontier) .. head .. pack(form, latestCount) .. tail
end
--# beyond
t = max(now, frontier)
--# room
local when = t
--@ turn
local used = total
if bytes == 4 then used = 0 end
if bytes == 4 and steps == 0 then used = latestCount end
room = used + n <= (bytes == 4 and 4294967295 or COUNTS)
--# charge
--@ spend
--# mark
mark = pack('<I8', (t - t % length) / length + 1)
--# refunds
local slot = unpack('<I8', mark) - 1
if unused > 0 and slot >= 0 and slot <= latest and slot > latest - slots then
  local place = slot % slots
  --@ count
  if c >= unused then
    --@ split
    sum, turnedTo = sum - unused, nil
    if slot == latest then
      latestCount = c - unused
    elseif place < latestPlace then
      local at = place * bytes
      head = sub(head, 1, at) .. pack(form, c - unused) .. sub(head, at + bytes + 1)
    else
      local at = (place - latestPlace - 1) * bytes
      tail = sub(tail, 1, at) .. pack(form, c - unused) .. sub(tail, at + bytes + 1)
    end
  end
end
