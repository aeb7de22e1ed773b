-- Open holds: internal/kernel/holds.go says what they are. Only the scripts for requests with holds,
-- and for keys that have some, insert these sections; see driver.lua. The other scripts find
-- out that a value has open holds only when it is not a state of theirs.
--
-- The value of a key with open holds has a prefix of its own, three numbers (how many holds are open,
-- and instants before and after which none of them ends by itself), an entry for each hold, oldest first,
-- and then what the value would be without. An entry is the hold's ID, its end, twice its events plus 1
-- if they are given back then, and a mark of each part. All are 8 bytes each.
--
-- A request changes the youngest entry and few others, so the list is kept as two strings: older
-- and young, which is the last entry. If it is long, older is not read before it is needed: then it is
-- false, and rest has the entries between older and young, and most requests only overwrite the end. The kernels have these sections, the counterparts of
-- those of a holder in package kernel:
--
--   markSize    sets p.markSize, the bytes of a mark
--   mark        sets mark to that of n events that are about to be spent at t
--   passMark    changes mark, that of the youngest hold, before events are spent at t
--   refunds     takes unused of the held events of entry i of entries back, which end at finish, and sets
--               p.merged to a mark that stands for those of this hold and all younger ones
--   merge       changes mark, which is followed by that in entry, which has ended
--   move        moves the n events of a hold from its end was to another one, finish
--   known       sees to it that the reply has all that settling depends on
--@@readHead
-- Reads the value, or of a long list of holds only what is before it.
local value, lazily = call('GETRANGE', KEYS[1], 0, #tag + 23), false
if #value == #tag + 24 then
  lazily = sub(value, 1, 1) == '\2' and sub(value, 2, #tag) == sub(tag, 2) and unpack('<I8', value, #tag + 1) > 15
  if not lazily then value = call('GET', KEYS[1]) end
end
--@@loadOlder
if not older then
  local was = call('GETRANGE', KEYS[1], #tag + 24, youngAt - 1)
  older, rest = was .. rest, ''
  if wereOlder == nil or wereOlder == false then wereOlder = was end
end
--@@openList
-- Reads the list of holds from value, if opens is true, and the cost of one event in each bucket.
local older, rest, young, size, youngAt, wereOlder = '', '', '', 24
--@<each
  if p.unit then
    p.oneTicks, p.oneUnits, pos = unpack('<dd', request, pos)
  end
  --@<markSize
  p.markAt = size + 1
  size = size + p.markSize
end
local firstEnd, lastEnd, misses, flies = LAST, 0, false, false
if opens then
  opens = 0
  if #value >= 24 then
    opens, firstEnd, lastEnd = unpack('<I8I8I8', value)
  end
  local at = 24 + opens * size
  youngAt = #tag + at - size
  if lazily then
    older, young = false, call('GETRANGE', KEYS[1], youngAt, -1)
    young, value = sub(young, 1, size), sub(young, size + 1)
  end
  if opens == 0 or not lazily and #value < at or lazily and #young < size then
    return pack('<dB', now, 1) .. call('GET', KEYS[1])
  end
  if not lazily then
    older, young = sub(value, 25, at - size), sub(value, at - size + 1, at)
    value = sub(value, at + 1)
  end
else
  opens = 0
end
--@<each
  if p.kind == 9 then flies = true end
end
--@@passYoungest
-- before events are spent at t
if opens > 0 then
  local entry = sub(young, 1, 24)
  --@<each
    local mark = sub(young, p.markAt, p.markAt + p.markSize - 1)
    --@<passMark
    entry = entry .. mark
  end
  young = entry
end
--@@takeOut
-- Takes unused events of the hold at index i of entries back. The holds in others are older than
-- all of these. Those in gone have ended.
do
  local t = now
  local _, finish, events = unpack('<I8I8I8', entries[i])
  local held = (events - events % 2) / 2
  --@<each
    p.merged = sub(entries[i], p.markAt, p.markAt + p.markSize - 1)
    --@<refunds
  end
  gone[i] = true
end
--@@sweep
-- Sets older and young to the holds in others and entries that have not ended.
local kept = {}
if others ~= '' then
  kept[1], others = sub(others, -size), sub(others, 1, -size - 1)
end
for i = 1, #entries do
  local entry, last = entries[i], #kept
  if not gone[i] then
    kept[last + 1] = entry
  else
    opens = opens - 1
    if last > 0 then
      local older = sub(kept[last], 1, 24)
      --@<each
        local mark = sub(kept[last], p.markAt, p.markAt + p.markSize - 1)
        --@<merge
        older = older .. mark
      end
      kept[last] = older
    end
  end
end
young = kept[#kept] or ''
older = others .. table.concat(kept, '', 1, max(#kept - 1, 0))
--@@endDue
-- Ends the holds that are due. The reply has the state after that.
local told, tells = '', 0 -- an entry for the reply, and how many the requests have asked for
local ended = false
if opens > 0 and firstEnd <= now then
  --@<loadOlder
  --@<undoHelp
  local others, entries, gone, list = '', {}, {}, older .. young
  for i = 1, opens do
    entries[i] = sub(list, (i - 1) * size + 1, i * size)
  end
  for i = 1, opens do
    local _, finish, events = unpack('<I8I8I8', entries[i])
    if finish <= now then
      ended = true
      local unused = 0
      if events % 2 == 1 then unused = (events - 1) / 2 end
      --@<takeOut
    end
  end
  --@<sweep
  firstEnd, lastEnd = LAST, 0
  list = older .. young
  for i = 1, opens do
    local finish = unpack('<I8', list, (i - 1) * size + 9)
    firstEnd, lastEnd = min(firstEnd, finish), max(lastEnd, finish)
  end
  --@@one
  --@<each
    --@<dump
    --@<load
  end
  value = s
  --@@several
  --@<each
    local s
    --@<dump
    p.s = s
    --@<load
  end
  if all == 1 then
    --@<partsValue
  else -- a key of joint.lua
    value = P[first].s
  end
  --@@always
end
wereOlder = older
local wereOpen, wereYoung, wereFirst, wereLast = opens, young, firstEnd, lastEnd
local wereLength = size + #value
told, tells = young, 0
local stores = false -- whether a request is more than a question
--@@readHold
-- Reads what a request says about a hold.
local id, lasts, flags = 0, 0, 0
if op ~= 0 then stores = true end
if op == 9 or op == 13 and opens > 0 then -- op 13 takes a lease, of which there are none while holds are open
  op = 0
elseif op == 13 then
  op = 1
elseif op == 7 or op == 8 or op == 11 or op == 12 then
  id, lasts, flags, pos = unpack('<ddB', request, pos)
  if op == 11 then op = 1 elseif op == 12 then op = 2 end
  if flags >= 2 and opens > 0 and wait > 0 then wait = 0 end
end
--@@find
-- Sets at to where the entry of the hold begins in list, the list of all holds, or to nil.
--@<loadOlder
local list, at, text = older .. young, 1, pack('<I8', id)
repeat
  at = find(list, text, at, true)
  if not at or at % size == 1 then break end
  at = at + 1
until false
--@@settle
-- Op 7 settles the hold of an ID, which held lasts events, n of which have happened in excess or,
-- if n is negative, have not. Op 8 moves its end.
if op == 7 or op == 8 then
  --@<undoHelp
  --@<find
  if at then
    tells = tells + 1
    --@<each
      --@<known
    end
  end
  if op == 8 then
    if at then
      local _, was, events = unpack('<I8I8I8', list, at)
      local finish, n = min(now + lasts, LAST), (events - events % 2) / 2
      told = sub(list, at, at + size - 1)
      list = sub(list, 1, at + 7) .. pack('<I8', finish) .. sub(list, at + 16)
      older, young = sub(list, 1, -size - 1), sub(list, -size)
      firstEnd, lastEnd, changed = min(firstEnd, finish), max(lastEnd, finish), true
      --@<each
        --@<move
      end
    end
  else
    if at then
      local _, _, events = unpack('<I8I8I8', list, at)
      if (events - events % 2) / 2 ~= lasts then
        return pack('<dB', now, 1) .. call('GET', KEYS[1])
      end
    end
    local possible = true
    if n > 0 then
      --@<each
        local t, room
        --@<beyond
        --@<room
        possible = possible and room
      end
    end
    if possible and at then
      local others, entries, gone, i, unused = sub(list, 1, at - 1), {}, {}, 1, max(0, -n)
      for from = at, #list, size do
        entries[#entries + 1] = sub(list, from, from + size - 1)
      end
      told = sub(list, at, at + 23)
      --@<takeOut
      --@<each
        told = told .. p.merged
      end
      -- and another entry, which stays
      if sub(wereYoung, 1, 8) == text then
        told = sub(wereOlder, -size) .. told
      else
        told = told .. wereYoung
      end
      --@<sweep
      changed = true
    end
    if possible and n > 0 then
      local t = now
      --@<passYoungest
      --@<each
        if p.kind ~= 9 then
          local t
          --@<beyond
          --@<charge
        end
      end
      changed = true
    elseif at and not possible then
      tells = 2
    end
  end
  times = 0
end
--@@opensHold
-- Before the n events that a request holds, if it does, are spent at t.
if id > 0 and opens >= 4096 and not flies then
  --@<loadOlder
  local entry = sub(older, 1, size)
  local _, _, events = unpack('<I8I8I8', entry)
  local others, entries, gone, i, unused = '', {}, {}, 1, 0
  if events % 2 == 1 then
    unused, tells = (events - 1) / 2, 2
    for from = 1, #older, size do
      entries[#entries + 1] = sub(older, from, from + size - 1)
    end
    entries[#entries + 1] = young
    --@<undoHelp
    --@<takeOut
    --@<sweep
  else
    --@<undoHelp
    entries[1] = young
    --@<takeOut
    young, older, opens = entries[1], sub(older, size + 1), opens - 1
  end
end
--@<passYoungest
local finish
if id > 0 then
  finish = min(t + lasts, LAST)
  if older then older = older .. young else rest = rest .. young end
  young = pack('<I8I8I8', id, finish, 2 * n + flags % 2)
  opens, firstEnd, lastEnd = opens + 1, min(firstEnd, finish), max(lastEnd, finish)
  --@<each
    local mark
    --@<mark
    young = young .. mark
  end
end
--@@opened
-- After they are spent.
if id > 0 and flies then
  --@<undoHelp
  --@<each
    local was = t + (p.window or 0)
    --@<move
  end
end
--@@tellHolds
-- Sets value to the reply's, and outcome to what it is.
local outcome = 0
if wereOpen > 0 then
  if tells > 1 then told = wereOlder .. wereYoung end
  outcome = 5
  value = pack('<I8I8I8', #told / size, wereFirst, wereLast) .. told .. value
end
--@@writeHolds
-- Adds the list of holds to state, and sets fresh to when none is open any more.
if opens > 0 then
  local ending, head = young .. sub(state, #tag + 1), pack('<I8I8I8', opens, firstEnd, lastEnd)
  if not older and #rest + #ending >= wereLength then
    state = nil
    call('SETRANGE', KEYS[1], youngAt, rest .. ending)
    if rest ~= '' then call('SETRANGE', KEYS[1], #tag, head) end
  else
    --@<loadOlder
    state = '\2' .. sub(state, 2, #tag) .. head .. older .. ending
  end
  if lastEnd > fresh then fresh = lastEnd end
end
