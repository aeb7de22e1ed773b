-- SlidingLog, and InFlight, whose window is its timeout: slidinglog.lua and flight.lua have what
-- differs. take.lua describes the blocks.
--
-- Constants: the limit, the window, and whether denied events count (1 or 0). State: the number of
-- events, the word at which the entries begin (here always 3), the latest instant at which events
-- were granted, and the entries, oldest first. An entry is an instant, and for several events at
-- that instant their number with the top bit set.
--# opening
local _, limit, window, counted, now, op, times, n, wait, pos = unpack('<BddBdBI4dd', request)
--# constants
local limit, window, counted
limit, window, counted, pos = unpack('<ddB', request, pos)
--# traits
grows = true, notes = counted == 1,
markSize = 8, markForm = 'd',
--@ if flight
flies = true,
--@ end
--# state
local total, frontier, log -- the events, and the entries
local totalWas, logWas -- when they were loaded
local start, gone -- the first entry in the window at now, if it is known, and the events before it
local need = 0 -- the most events that any decision waited for to leave the window
--# fits
fits = #s % 8 == 0
--# load
total, frontier, log = 0, 0, ''
if s ~= '' then
  local _
  total, _, frontier = unpack('<I8I8I8', s)
  log = sub(s, 25)
end
totalWas, logWas = total, log
start, gone = 1, 0
--# entry
-- Sets instant to that of the entry at position from of entries, m to its number of events, and
-- after to the position of the next entry.
local instant, m, after = unpack('<I7', entries, from), 1, from + 8
if byte(entries, from + 15) == 128 then m, after = unpack('<I7', entries, from + 8), from + 16 end
--# before
-- Sets from to the position of the entry before position to.
local from = to - 8
if byte(entries, to - 1) == 128 then from = to - 16 end
--# pass
-- Advances from to the first entry in the window at t, and subtracts the others from events.
while from <= #entries do
  --@ entry
  if instant + window > t then break end
  events, from = events - m, after
end
--# live
-- Sets events to the number in the window at t, and from to the position of their first entry.
local entries, events, from = log, total - gone, start
--@ pass
if t == now then start, gone = from, total - events end
--# packed
-- Sets packed to an entry of sum events at t.
local packed = ''
if sum > 1 then
  packed = pack('<I8I7B', t, sum, 128)
elseif sum == 1 then
  packed = pack('<I8', t)
end
--# insert
-- Adds n events at t, keeping the entries in order of time, and removes those that are not in the
-- window at now, which ready or room has found. The events join an entry at t, in which there can
-- be at most most. Sets sum to the events in it, and later to the events after it.
if start > 1 then
  log, total, start, gone = sub(log, start), total - gone, 1, 0
end
local entries, to, sum, later = log, #log + 1, n, 0
local rest = to -- where the entries after it begin
while to > 1 do
  --@ before
  if unpack('<I7', entries, from) < t then break end
  --@ entry
  to = from
  if instant == t then
    total, sum = total - m, m + n
    if sum > most then sum = m > most and m or most end
    break
  end
  rest, later = from, later + m
end
total = total + sum
--@ packed
if to > #entries then
  log = entries .. packed
else
  log = sub(entries, 1, to - 1) .. packed .. sub(entries, rest)
end
--# ready
when = t
--@ live
local popped = 0
if frontier > t then
  -- There are no entries after it. Reservations ahead leave many entries behind that are not in
  -- its window, so the search is from both ends. newest events are in the entries from to on.
  when = frontier
  local all, at, to, newest = events, from, #entries + 1, 0
  while at < to do
    from = at
    --@ entry
    if instant + window > when then break end
    events, at = events - m, after
    --@ before
    --@ entry
    if instant + window <= when then
      events, at = newest, to
      break
    end
    newest, to = newest + m, from
  end
  from, popped = at, all - events
end
if n > limit then
  when = LAST + 1 -- never: it is a turn that was reserved under a higher limit
else
  while events + n > limit do
    --@ entry
    events, from, popped = events - m, after, popped + m
    when = instant + window
  end
end
if popped > need then need = popped end
--# spend
local most = 2 * limit
--@ insert
frontier = t
--# refuse
-- Of the events before now, only the newest can affect a decision: as many as the limit, and as
-- many more as are held.
local t, before, most = now, total - gone, 2 * limit
--@ insert
local drop, spare = total - before, total - sum - later - limit - held
if spare < drop then drop = spare end
if drop > 0 then
  total = total - drop
  local entries, from, t = log, 1
  repeat
    --@ entry
    drop, from, t = drop - m, after, instant
  until drop <= 0
  local sum = -drop
  --@ packed
  log = packed .. sub(entries, from)
end
--# fresh
when = frontier
if log ~= '' then
  local entries, to = log, #log + 1
  --@ before
  local last = unpack('<I7', entries, from) + window
  if last > when then when = last end
end
--# dump
s = ''
if total > 0 or frontier > 0 then
  s = pack('<I8I8I8', total, 3, frontier) .. log
end
--# view
-- Omits the entries that have left the window, and combines those that no decision waited for into
-- one. Of a short state, that takes longer than the reply with all of it.
if #s > 128 and counted == 0 then
  local entries, events, from, t = logWas, totalWas, 1, now
  --@ pass
  local at, left = from, events
  while from <= #entries and events - left < need do
    --@ entry
    left, from = left - m, after
  end
  s = pack('<I8I8', events, 3) .. sub(s, 17, 24) .. sub(entries, at, from - 1)
  if left > 0 then
    local to = #entries + 1
    --@ before
    local t, sum = unpack('<I7', entries, from), left
    --@ packed
    s = s .. packed
  end
end
--# beyond
t = now
if frontier > t then t = frontier end
--# room
do
  local t = now
  --@ live
  room, need = events + n <= COUNTS, math.huge
end
--# charge
local most = COUNTS
--@ insert
frontier = t
--# remaining
-- Looks at the entries that have left the window only. The block ready would look at one for each
-- event that is asked for in vain.
most = 0
if frontier <= now then
  local t = now
  --@ live
  most = max(limit - events, 0)
end
--# mark
mark = pack('<I8', t + 1)
--# leasts
local removals = {}
--# lower
--@ remove
--# remove
-- Removes the events of removals, of which each is an instant and a number. The frontier falls to
-- the last remaining entry. Each entry is looked at once, however many removals there are.
do
  if #removals > 1 then table.sort(removals, function(a, b) return a[1] < b[1] end) end
  local entries, i = log, #removals
  local to, kept, pieces = #entries + 1, #entries, {} -- pieces are what remains from kept on, the last one first
  while to > 1 and i > 0 do
    --@ before
    --@ entry
    while i > 0 and removals[i][1] > instant do i = i - 1 end
    local t, sum = instant, m
    while i > 0 and removals[i][1] == t do
      sum, i = max(sum - removals[i][2], 0), i - 1
    end
    if sum < m then
      --@ packed
      pieces[#pieces + 1] = sub(entries, to, kept)
      pieces[#pieces + 1] = packed
      total, kept = total - m + sum, from - 1
    end
    to = from
  end
  if #pieces > 0 then
    pieces[#pieces + 1] = sub(entries, 1, kept)
    for j = 1, floor(#pieces / 2) do
      local k = #pieces + 1 - j
      pieces[j], pieces[k] = pieces[k], pieces[j]
    end
    log, start, gone = table.concat(pieces), 1, 0
    local last = 0
    if log ~= '' then
      local entries, to = log, #log + 1
      --@ before
      last = unpack('<I7', entries, from)
    end
    frontier = min(frontier, last)
  end
end
