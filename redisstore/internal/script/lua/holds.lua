-- Open holds: internal/step/holds.go says what they are. Only the scripts for requests with holds
-- and reservations, and for keys that have some, insert these blocks, in main.lua and joint.lua.
-- The other scripts find out that a value has open holds only when it is not a state of theirs.
-- part.lua says what a part does about holds.
--
-- The value of a key with open holds has a prefix of its own, three numbers (how many holds are
-- open, an instant before which none of them ends by itself, and the latest at which one does), an
-- entry for each hold, oldest first, and then what the value would be without. An entry is the
-- hold's ID, its end, twice its events plus 1 if they are given back then, and a mark of each part.
-- A mark has p.markSize bytes, and the other numbers have 8 each.
--
-- A request changes the youngest entry and few others, so the list is kept as four strings: front,
-- older, rest, and young, which is the last entry. Redis hashes each string that a script makes,
-- which takes most of the time if it is long. So older is not read before it is needed: until then
-- it is false, rest has the entries that this command has added behind those, and most requests
-- only overwrite the end of the value. Once older is read, rest is empty.
--# readHead
-- Reads the value or, if it has a long list of holds, only its beginning.
local value, lazily = call('GETRANGE', KEYS[1], 0, #tag + 511), false
if #value == #tag + 512 then
  lazily = sub(value, 1, 1) == '\2' and sub(value, 2, #tag) == sub(tag, 2) and unpack('<I8', value, #tag + 1) > 15
  if not lazily then value = call('GET', KEYS[1]) end
end
--# whole
-- Makes older the list of all holds, with that in young.
if older then
  if front ~= '' or young ~= '' then older = front .. older .. young end
elseif rest == '' and young == wereYoung then
  wereList = call('GETRANGE', KEYS[1], #tag + 24, youngAt + size - 1)
  older = wereList
else
  older = call('GETRANGE', KEYS[1], #tag + 24, youngAt - 1)
  wereList = older .. wereYoung
  older = older .. rest .. young
end
front, rest, young = '', '', ''
--# splitYoung
-- Sets young to the youngest entry, unless it is.
if young == '' and opens > 0 then
  if older == '' then front, older = '', front end
  older, young = sub(older, 1, -size - 1), sub(older, -size)
end
--# openList
-- Reads the list of holds from value, if opens is true, and the cost of one event in each bucket.
local front, older, rest, young, youngAt = '', '', '', ''
local wereOlder, wereYoung, wereList -- before the requests; nil if they are not known
local levels = false
size, form = 24, 'ddd' -- of an entry
for j = first, many do
  local p = P[j]
  if p.priced then
    p.oneTicks, p.oneUnits, pos = unpack('<dd', request, pos)
  end
  form, levels = form .. p.markForm, levels or p.levels
  p.markAt = size + 1
  size = size + p.markSize
end
local firstEnd, lastEnd, flies = LAST, 0, false
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
  if opens == 0 or firstEnd > lastEnd or lastEnd > LAST or not lazily and #value < at or lazily and #young < size then
    return pack('<dB', now, 1) .. call('GET', KEYS[1])
  end
  if not lazily then
    older, young = sub(value, 25, at - size), sub(value, at - size + 1, at)
    value = sub(value, at + 1)
  end
  wereYoung = young
else
  opens = 0
end
for j = first, many do
  local p = P[j]
  if p.flies then flies = true end
end
--# passYoungest
-- Before events are spent at t: changes the marks of the youngest hold that say how much was
-- missing.
--@ splitYoung
if opens > 0 then
  for j = first, many do
    local p = P[j]
    if p.levels then
      local at, behind = p.markAt, p.markAt + p.markSize
      young = sub(young, 1, at - 1) .. p.mark(t, 0, sub(young, at, behind - 1)) .. sub(young, behind)
    end
  end
end
--# takeOut
-- Ends holds: of the entries in list, those at the indexes out, in order, whose events in back were
-- not used. Those in others are older. If levels is true, list has all from the one before the
-- first that ends. Sets front and older to the holds that stay.
do
  local words
  for j = first, many do
    words = P[j].takeBack(list, out, back, words)
  end
  if undecided then
    --@ leave
  end
  local kept, from, most = {}, 1, floor(7000 * 8 / size)
  for k = 1, #out + 1 do -- the entries before the k-th that ends
    local to = (out[k] or #list / size + 1) - 1
    if not words then
      kept[k] = sub(list, (from - 1) * size + 1, to * size)
      from = to + 1
    end
    while from <= to do
      local some = min(most, to + 1 - from)
      kept[#kept + 1] = pack('<' .. string.rep(form, some), spread(words, (from - 1) * size / 8 + 1, (from + some - 1) * size / 8))
      from = from + some
    end
    from = from + 1
  end
  opens = opens - #out
  front, older, young = others, table.concat(kept), ''
end
--# words
-- Sets words to those of list, which replace it in the end. They are bits of doubles, except of the
-- marks with which this script reckons: for them, form has integers. A function returns fewer than
-- 8000 values.
if not words then
  words = {}
  local most = floor(7000 * 8 / size)
  for from = 1, #list, most * size do
    local some = min(most, (#list + 1 - from) / size)
    local read = {unpack('<' .. string.rep(form, some), list, from)}
    read[some * size / 8 + 1] = nil -- the position after them
    if from == 1 then
      words = read
    else
      for j = 1, #read do words[#words + 1] = read[j] end
    end
  end
end
--# endDue
-- Ends the holds that are due. The reply has the state after that.
local told, tells = '', 0 -- an entry for the reply, and how many the requests have asked for
local over = 0 -- how many holds have ended without a request
local ended = false
if opens > 0 and firstEnd <= now then
  --@ whole
  local others, list, out, back = '', older, {}, {}
  for i = 1, opens do
    local id, finish, events = unpack('<I8I8I8', list, (i - 1) * size + 1)
    if finish <= now then
      out[#out + 1], back[#back + 1] = i, events % 2 * (events - 1) / 2
      over = over + id % 2 -- an even one is that of a turn
    end
  end
  ended = over > 0
  if #out > 0 then
    --@ takeOut
  end
  firstEnd, lastEnd = LAST, 0
  for i = 1, opens do
    local finish = unpack('<I8', older, (i - 1) * size + 9)
    firstEnd, lastEnd = min(firstEnd, finish), max(lastEnd, finish)
  end
  --@ stateNow
end
--@ splitYoung
wereOlder, wereYoung, wereList = older, young, nil
local wereOpen, wereFirst, wereLast = opens, firstEnd, lastEnd
local wereLength = size + #value
told, tells = young, 0
if opens > 1 and unpack('<I8', young) % 2 == 0 then -- a turn does not tell that holds are open
  tells = 2
  if not older then
    --@ whole
  end
end
local stores = false -- whether a request is more than a question
local asks = false -- whether an answer says when a request will be granted that is denied now
--# readHold
-- Reads what a request says about a hold.
local id, lasts, flags, held = 0, 0, 0
if op ~= 0 then stores = true end
if op > 3 then asks = true end
if op == 7 and opening and turns == '' then -- whether it changes the mark of that hold depends on what it is
  --@ leave
end
if op == 7 then
  op = 0
elseif op == 2 or op == 3 or op == 5 or op == 6 then
  id, lasts, flags, pos = unpack('<ddB', request, pos)
  if op == 3 then op = 1 end
end
local yields = false -- whether it is denied if it has to wait: while holds, whose IDs are odd, are open, or will be
if flags >= 2 then
  local queues = false -- only they have turns in the list
  for j = first, many do
    local p = P[j]
    queues = queues or p.queue
  end
  for from = 1, #turns, 32 do yields = yields or unpack('<I8', turns, from) % 2 == 1 end
  if not queues then
    yields = yields or opens > 0 or holdsBefore
  elseif holdsBefore and not yields then
    --@ leave
  elseif opens > 0 then
    --@ whole
    for from = 1, #older, size do yields = yields or unpack('<I8', older, from) % 2 == 1 end
  end
end
--# find
-- Sets entry to that of the hold, and at to where it begins in older, which has all; or both to
-- nil.
--@ whole
local at, text = 0, pack('<I8', id)
repeat
  at = string.find(older, text, at + 1, true)
until not at or at % size == 1
local entry = at and sub(older, at, at + size - 1)
--# latestEnd
-- Sets lastEnd to the latest end of the holds, all of which are in front, older and young.
lastEnd = 0
for _, list in ipairs({front, older, young}) do
  for from = 9, #list, size do lastEnd = max(lastEnd, (unpack('<I8', list, from))) end
end
--# settle
-- Op 5 settles the hold of an ID, which held lasts events, n of which have happened in excess or,
-- if n is negative, have not. Op 6 moves its end.
if (op == 5 or op == 6) and turns ~= '' then
  --@ settleTurn
elseif op == 5 or op == 6 then
  for j = first, many do
    local p = P[j]
    p.known = true -- the answer says when the next event is granted, which nothing here asks for
  end
  --@ find
  if at then tells = tells + 1 end
  if op == 6 then
    if at then
      local _, was, events = unpack('<I8I8I8', entry)
      local finish, n = min(now + lasts, LAST), (events - events % 2) / 2
      told = entry
      entry = sub(entry, 1, 8) .. pack('<I8', finish) .. sub(entry, 17)
      front, older = sub(older, 1, at - 1) .. entry, sub(older, at + size)
      firstEnd, changed = min(firstEnd, finish), true
      if was == lastEnd then
        --@ latestEnd
      else
        lastEnd = max(lastEnd, finish)
      end
      for j = first, many do
        local p = P[j]
        if p.move then p.move(was, finish, n) end
      end
    end
  else
    if at then
      local _, _, events = unpack('<I8I8I8', entry)
      if (events - events % 2) / 2 ~= lasts then
        return pack('<dB', now, 1) .. call('GET', KEYS[1])
      end
    end
    local possible = true
    if n > 0 then
      for j = first, many do
        local p = P[j]
        possible = p.charge(n, true) and possible
      end
    end
    if possible and at then
      local others, list, behind, out, back = nil, entry, '', {1}, {max(0, -n)}
      if levels then
        local from = max(1, at - size)
        others, list, out = sub(older, 1, from - 1), sub(older, from), {(at - from) / size + 1}
      else
        others, behind = sub(older, 1, at - 1), sub(older, at + size)
      end
      --@ takeOut
      if not levels then older = behind end
      if unpack('<I8', entry, 9) == lastEnd then
        --@ latestEnd
      end
      told = sub(entry, 1, 24)
      for j = first, many do
        local p = P[j]
        told = told .. p.merged
      end
      -- and another entry, which stays
      if sub(wereYoung, 1, 8) == text then
        local stays = wereList and sub(wereList, -2 * size, -size - 1) or sub(wereOlder or '', -size)
        if stays ~= '' and unpack('<I8', stays) % 2 == 0 then tells = 2 end
        told = stays .. told
      else
        told = told .. wereYoung
      end
      changed = true
    end
    if possible and n > 0 then
      local t = now
      --@ passYoungest
      for j = first, many do
        local p = P[j]
        if not p.flies then p.charge(n) end
      end
      changed = true
    elseif at and not possible then
      tells = 2
    end
  end
  times = 0
end
--# heldEvents
-- Before events that were denied are noted: sets held to the number of all held events, which may
-- come back. The reply needs all holds then, because of the requests that follow.
if not held then
  held = 0
  if opens > 0 then
    if not older then
      --@ whole
    end
    for _, list in ipairs({front, older, young}) do
      for from = 1, #list, size do
        local _, _, events = unpack('<I8I8I8', list, from)
        held = held + (events - events % 2) / 2
      end
    end
    tells = 2
  end
end
--# opensHold
-- Before the n events that a request holds, if it does, are spent at t.
if id > 0 and opens >= 4096 and not flies then
  if older or rest ~= '' then
    --@ whole
  end
  local _, ends, events = unpack('<I8I8I8', older or call('GETRANGE', KEYS[1], #tag + 24, #tag + 47))
  over = over + 1
  if not older and (events % 2 == 1 or ends == lastEnd) then
    --@ whole
  end
  if events % 2 == 1 then
    tells = 2
    local others, list, out, back = '', older, {1}, {(events - 1) / 2}
    --@ takeOut
  else
    opens = opens - 1
    if older then
      older = sub(older, size + 1)
    else
      older = call('GETRANGE', KEYS[1], #tag + 24 + size, youngAt - 1)
    end
  end
  if ends == lastEnd then
    --@ latestEnd
  end
end
--@ passYoungest
local finish
if id > 0 then
  local due = t -- when the events may happen
  for j = first, many do
    local p = P[j]
    if p.queue then due = max(due, t + p.delay(t)) end
  end
  finish = min(due + lasts, LAST)
  held = nil
  if opens == 0 then firstEnd, lastEnd = LAST, 0 end
  if not older then
    rest = rest .. young
  elseif front == '' then
    front, older = older, young
  else
    older = older .. young
  end
  young = pack('<I8I8I8', id, finish, 2 * n + flags % 2)
  opens, firstEnd, lastEnd = opens + 1, min(firstEnd, finish), max(lastEnd, finish)
  for j = first, many do
    local p = P[j]
    young = young .. p.mark(t, n)
  end
end
--# opened
-- After they are spent.
if id > 0 and flies then
  for j = first, many do
    local p = P[j]
    if p.move then p.move(nil, finish, n) end
  end
end
--# tellBack
-- When a request will be granted depends on what holds give back by themselves: then the reply has
-- all holds, and the whole state. Of an InFlight, the log tells.
if asks and wereOpen > 0 then
  local counts = false
  for j = first, many do
    local p = P[j]
    counts = counts or not p.flies
  end
  if counts then
    local list = wereList or wereOlder and wereOlder .. wereYoung
      or call('GETRANGE', KEYS[1], #tag + 24, youngAt - 1) .. wereYoung
    for from = 17, #list, size do
      if byte(list, from) % 2 == 1 then
        wereList, tells, whole = list, 2, true
        break
      end
    end
  end
end
--# tellHolds
-- Sets value to the reply's, and outcome to what it is.
if wereOpen > 0 then
  if tells > 1 then told = wereList or wereOlder .. wereYoung end
  outcome = 5
  value = pack('<I8I8I8', #told / size, wereFirst, wereLast) .. told .. value
end
--# writeHolds
-- Adds the list of holds to state, and sets fresh to when none is open any more.
if opens > 0 then
  local ending, head = sub(state, #tag + 1), pack('<I8I8I8', opens, firstEnd, lastEnd)
  if not older and #rest + #young + #ending >= wereLength then
    state = nil
    call('SETRANGE', KEYS[1], youngAt, rest .. young .. ending)
    if rest ~= '' then call('SETRANGE', KEYS[1], #tag, head) end
  else
    if not older then
      --@ whole
    end
    state = '\2' .. sub(state, 2, #tag) .. head .. front .. older .. young .. ending
  end
  if lastEnd > fresh then fresh = lastEnd end
end
