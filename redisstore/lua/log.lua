-- SlidingLog, and InFlight, whose window is its timeout. The state is the number of events, the
-- word at which the entries begin (here always 3), the latest instant at which events were
-- granted, and the entries, oldest first. An entry is an instant, and for several events at that
-- instant their number with the top bit set.
--@@entry
-- sets first to the instant of the entry at position from of entries, m to its number of events,
-- and after to the position of the next entry
local first, m, after = unpack('<I7', entries, from), 1, from + 8
if byte(entries, from + 15) == 128 then m, after = unpack('<I7', entries, from + 8), from + 16 end
--@@before
-- sets from to the position of the entry before position to
local from = to - 8
if byte(entries, to - 1) == 128 then from = to - 16 end
--@@pass
-- advances from to the first entry in the window at t, and subtracts the others from events
while from <= #entries do
  --@<entry
  if first + p.window > t then break end
  events, from = events - m, after
end
--@@live
-- sets events to the number in the window at t, and from to the position of their first entry
local entries, events, from = p.entries, p.events - p.gone, p.first
--@<pass
if t == now then p.first, p.gone = from, p.events - events end
--@@packed
-- sets packed to an entry of sum events at t
local packed = ''
if sum > 1 then
  packed = pack('<I8I7B', t, sum, 128)
elseif sum == 1 then
  packed = pack('<I8', t)
end
--@@insert
-- Adds n events at t, keeping the entries in order of time, and removes those that are not in the
-- window at now, which ready or room has found. The events join an entry at t, in which there can
-- be at most most. Sets sum to the events in it, and later to the events after it.
if p.first > 1 then
  p.entries, p.events, p.first, p.gone = sub(p.entries, p.first), p.events - p.gone, 1, 0
end
local entries, to, sum, later = p.entries, #p.entries + 1, n, 0
local rest = to -- where the entries after it begin
while to > 1 do
  --@<before
  if unpack('<I7', entries, from) < t then break end
  --@<entry
  to = from
  if first == t then
    p.events, sum = p.events - m, m + n
    if sum > most then sum = m > most and m or most end
    break
  end
  rest, later = from, later + m
end
p.events = p.events + sum
--@<packed
if to > #entries then
  p.entries = entries .. packed
else
  p.entries = sub(entries, 1, to - 1) .. packed .. sub(entries, rest)
end
--@@open
p.most, p.window, p.counted, pos = unpack('<ddB', request, pos)
p.grows, p.notes = true, p.counted == 1
p.need, p.held = 0, 0 -- the most events that any decision waited for to leave the window, and those held
--@@load
p.events, p.frontier, p.entries = 0, 0, ''
if s ~= '' then
  local _
  p.events, _, p.frontier = unpack('<I8I8I8', s)
  p.entries = sub(s, 25)
end
p.eventsWere, p.entriesWere = p.events, p.entries
p.first, p.gone = 1, 0 -- the first entry in the window at now, if it is known, and the events before it
--@@ready
when = t
--@<live
local popped = 0
if p.frontier > t then
  -- There are no entries after it. Reservations ahead leave many entries behind that are not in
  -- its window, so the search is from both ends. newest events are in the entries from to on.
  when = p.frontier
  local all, at, to, newest = events, from, #entries + 1, 0
  while at < to do
    from = at
    --@<entry
    if first + p.window > when then break end
    events, at = events - m, after
    --@<before
    --@<entry
    if first + p.window <= when then
      events, at = newest, to
      break
    end
    newest, to = newest + m, from
  end
  from, popped = at, all - events
end
while events + n > p.most do
  --@<entry
  events, from, popped = events - m, after, popped + m
  when = first + p.window
end
if popped > p.need then p.need = popped end
--@@spend
local most = 2 * p.most
--@<insert
p.frontier = t
--@@refuse
-- of the events before now, only the newest p.most can affect a decision, and as many more as are held
local t, before, most = now, p.events - p.gone, 2 * p.most
--@<insert
local drop, spare = p.events - before, p.events - sum - later - p.most - p.held
if spare < drop then drop = spare end
if drop > 0 then
  p.events = p.events - drop
  local entries, from, t = p.entries, 1
  repeat
    --@<entry
    drop, from, t = drop - m, after, first
  until drop <= 0
  local sum = -drop
  --@<packed
  p.entries = packed .. sub(entries, from)
end
--@@fresh
when = p.frontier
if p.entries ~= '' then
  local entries, to = p.entries, #p.entries + 1
  --@<before
  local last = unpack('<I7', entries, from) + p.window
  if last > when then when = last end
end
--@@dump
s = ''
if p.events > 0 or p.frontier > 0 then
  s = pack('<I8I8I8', p.events, 3, p.frontier) .. p.entries
end
--@@view
-- omits the entries that have left the window, and combines those that no decision waited
-- for into one. Of a short state, that takes longer than the reply with all of it.
if #s > 128 and not p.notes then
  local entries, events, from, t = p.entriesWere, p.eventsWere, 1, now
  --@<pass
  local at, left = from, events
  while from <= #entries and events - left < p.need do
    --@<entry
    left, from = left - m, after
  end
  s = pack('<I8I8', events, 3) .. sub(s, 17, 24) .. sub(entries, at, from - 1)
  if left > 0 then
    local to = #entries + 1
    --@<before
    local t, sum = unpack('<I7', entries, from), left
    --@<packed
    s = s .. packed
  end
end
--@@settleHelp
-- removes the events of removals, of which each is an instant and a number. The frontier falls to the
-- last remaining entry. Each entry is looked at once, however many removals there are.
local function removeAll(p, removals)
  if #removals > 1 then table.sort(removals, function(a, b) return a[1] < b[1] end) end
  local entries, i = p.entries, #removals
  local to, kept, pieces = #entries + 1, #entries, {} -- pieces are what remains from kept on, the last one first
  while to > 1 and i > 0 do
    --@<before
    --@<entry
    while i > 0 and removals[i][1] > first do i = i - 1 end
    local t, sum = first, m
    while i > 0 and removals[i][1] == t do
      sum, i = max(sum - removals[i][2], 0), i - 1
    end
    if sum < m then
      --@<packed
      pieces[#pieces + 1] = sub(entries, to, kept)
      pieces[#pieces + 1] = packed
      p.events, kept = p.events - m + sum, from - 1
    end
    to = from
  end
  if #pieces == 0 then return end
  pieces[#pieces + 1] = sub(entries, 1, kept)
  for i = 1, floor(#pieces / 2) do
    local j = #pieces + 1 - i
    pieces[i], pieces[j] = pieces[j], pieces[i]
  end
  entries = table.concat(pieces)
  p.entries, p.first, p.gone = entries, 1, 0
  local last = 0
  if entries ~= '' then
    to = #entries + 1
    --@<before
    last = unpack('<I7', entries, from)
  end
  p.frontier = min(p.frontier, last)
end
--@@leasts
p.removals = {}
--@@lower
removeAll(p, p.removals)
--@@beyond
t = now
if p.frontier > t then t = p.frontier end
--@@room
local t = now
--@<live
room, p.need = events + n <= COUNTS, math.huge
--@@charge
local most = COUNTS
--@<insert
p.frontier = t
--@@known
p.need = math.huge
--@@markSize
p.markSize, form = 8, form .. 'd'
--@@mark
mark = pack('<I8', t + 1)
