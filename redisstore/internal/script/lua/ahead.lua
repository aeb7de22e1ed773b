-- Turns ahead: internal/step/turns.go says what they are, and the words of their state. Only the
-- scripts that know holds insert these blocks, in main.lua and, to read the turns, in joint.lua.
--
-- The parts have the state after the turns, which are in the string turns. The string before has
-- the state before them and, if holdsBefore is true, ahead of it the list of open holds. What is
-- rare is left to the process (foreign.go): whatever changes the state before the turns, other than
-- that they come, and that one of them is an open hold from then on.
--# leave
-- Leaves the decision to the process. This ends the script, so no function may insert it: a part
-- sets undecided instead.
do return pack('<dB', now, 1) .. (call('GET', KEYS[1]) or '') end
--# aheadList
-- Reads the turns from value, if ahead is true, and leaves the state after them.
local turns, before, holdsBefore, listed = '', '', false, value
local pending = '' -- turns whose events are still to be spent
local stale = false -- whether the parts have the events of a turn that was left out
local drifts = false -- whether that may make it necessary that it stays: then the process decides
local latest = 0 -- when the new turns and what was open before have ended
local came, coming, after = false, false
local opening = false -- whether the last turn that has come is an open hold from then on
if ahead then
  local count, form = 0, 0
  if #value >= 16 then count, form = unpack('<I8I8', value) end
  local to = 16 + 32 * count
  local ends = to + 2 * (form - form % 4)
  if count == 0 or form % 4 > 1 or #value < ends then
    --@ leave
  end
  turns, before, holdsBefore = sub(value, 17, to), sub(value, ends + 1), form % 2 == 1
  value = sub(value, to + 1, ends)
end
--# loadStates
-- Reads the states of the parts from value.
do
  --@ if all
  --@ readParts
  for j = first, many do P[j].load(P[j].s) end
  --@ end
  --@ if not all
  P[1].load(value)
  --@ end
end
--# stateNow
-- Sets value to the state of the parts.
for j = first, many do
  local p = P[j]
  local _
  _, p.s = p.after()
  p.load(p.s)
end
--@ if all
if all == 1 then
  --@ partsValue
else
  value = P[first].s
end
--@ end
--@ if not all
value = P[1].s
--@ end
--# aheadDue
-- Lets the turns come that are due. The state after all turns stays.
if ahead then
  whole = true
  local left = 1 -- where the others begin
  while left < #turns do
    local id, at, finish = unpack('<I8I8I8', turns, left)
    if at > now then break end
    if opening or id % 2 == 1 and finish <= now then
      --@ leave
    end
    opening, left = id > 0 and finish > now, left + 32
  end
  came = left > 1
  if holdsBefore and (came or unpack('<I8', before, 9) <= now) then
    --@ leave
  end
  if came then
    pending, turns = sub(turns, 1, left - 1), sub(turns, left)
    coming = turns ~= '' or opening
    if coming then
      after, value = value, before
      --@ loadStates
    else
      pending = ''
    end
  end
end
--# spendPending
-- Spends the events of the turns in pending, as turns.spend in package kernel does.
if stale and (drifts or turns == '' or byte(request, pos) ~= 5) then
  local value = before
  if holdsBefore then value = sub(before, 25 + unpack('<I8', before) * size) end
  --@ loadStates
  pending, stale = turns, false
end
if pending ~= '' then
  local list, possible = pending, true
  pending = ''
  local nowWas, opWas = now, op
  for from = 1, #list, 32 do
    local id, at, finish, events = unpack('<I8I8I8I8', list, from)
    local n = (events - events % 2) / 2
    if drifts and id == 0 and finish == 0 then possible = false end -- it is void
    if n > 0 then
      local books = true
      now, op = at, 2 -- the kernels' time and operation
      for j = first, many do
        local p = P[j]
        if p.cost then p.cost(n) end
        if p.ready(at, n) > at then books = false end
      end
      local starts = opening and coming and from > #list - 32
      if not books and (drifts or starts) then
        possible = false
        break
      end
      if starts then
        young = pack('<I8I8I8', id, finish, events)
        for j = first, many do
          local p = P[j]
          young = young .. p.mark(at, n)
        end
        firstEnd, lastEnd = finish, finish
      end
      if not books then
        op = 4
        for j = first, many do
          local p = P[j]
          possible = p.charge(n, true) and possible
        end
        if not possible then break end
      end
      for j = first, many do
        local p = P[j]
        if books then
          p.spend(at, n)
        else
          p.charge(n)
        end
        if p.move then p.move(nil, finish, n) end
      end
    end
  end
  now, op = nowWas, opWas
  if not possible then
    --@ leave
  end
  if coming then
    coming = false
    --@ stateNow
    before = value
    if turns == '' then
      opens = 1
    else
      if opening then
        before, young, holdsBefore = pack('<I8I8I8', 1, firstEnd, lastEnd) .. young .. before, '', true
      end
      value = after
      --@ loadStates
    end
  end
end
--# reserve
-- Op 2 reserves n events. Sets at to when they are granted, and op to 1 if that is now, to 2 if
-- they are spent ahead, and to 0 if they are not granted, or if a turn has them. A queue must have
-- room at the time when the other parts grant.
local function ready(t, queues)
  local at = t
  for j = 1, many do
    local p = P[j]
    if queues == nil or queues == (p.queue or false) then
      local when = p.ready(t, n)
      if when > at then at = when end
    end
  end
  return at
end
local from = now
if turns ~= '' then from = unpack('<I8', turns, #turns - 23) end -- nothing is granted before the last turn
local others = ready(from, false)
local full = others <= LAST and ready(others, true) > others
at = ready(from)
local due = at
for j = 1, many do
  if P[j].queue then due = max(due, at + P[j].delay(at)) end
end
if full or at > LAST or due - now > wait or yields and at > now then
  op = 0
elseif turns ~= '' or id > 0 and at > now then
  op = 0
  --@ reserveTurn
elseif due <= now then
  op = 1
  if lasts == 0 then id = 0 end -- it is over
end
--# reserveTurn
-- Adds the turn of n events at an instant.
if id == 0 or #turns >= 4096 * 32 then
  --@ leave
end
if turns == '' then
  local value
  --@ stateNow
  before = value
  if opens > 0 then
    --@ whole
    before, latest = pack('<I8I8I8', opens, firstEnd, lastEnd) .. older .. before, lastEnd
    holdsBefore, opens, older = true, 0, ''
  end
end
local finish = min(due + lasts, LAST)
pending = pack('<I8I8I8I8', id, at, finish, 2 * n + flags % 2)
turns, latest = turns .. pending, max(latest, finish)
granted, changed = granted + 1, true
--# settleTurn
-- Op 5 and 6 while turns are ahead: leaves out that of an ID if none of its events has happened.
local at, text = 0, pack('<I8', id)
repeat
  at = string.find(turns, text, at + 1, true)
until not at or at % 32 == 1
if id == 0 then at = nil end
for j = first, many do
  local p = P[j]
  if p.drifts then drifts = true end -- it may have to stay
end
if op == 6 or n > 0 or at and n + lasts > 0 or not at and holdsBefore or at and (drifts and #turns > 256 * 32 or holdsBefore and #turns == 32) then
  --@ leave
end
if at then
  turns, stale, changed = sub(turns, 1, at - 1) .. sub(turns, at + 32), true, true
end
times = 0
--# writeAhead
-- Adds the turns to state.
if turns ~= '' then
  local words = sub(state, #tag + 1)
  state = '\3' .. sub(tag, 2) .. pack('<I8I8', #turns / 32, #words / 2 + (holdsBefore and 1 or 0)) .. turns .. words .. before
  if latest > fresh then fresh = latest end
end
