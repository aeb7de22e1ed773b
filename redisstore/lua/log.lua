-- SlidingLog, and InFlight, whose window is its timeout. The state is the number of events, the
-- word at which the entries begin (here always 3), the latest instant at which events were
-- granted, and the entries, oldest first. An entry is an instant, and for several events at that
-- instant their number with the top bit set.
--@@help
-- the entry at a position of the entries s: its instant, its number of events, and the
-- position of the next entry
local function entry(s, at)
  local t = unpack('<I7', s, at)
  if s:byte(at + 15) == 128 then
    return t, unpack('<I7', s, at + 8), at + 16
  end
  return t, 1, at + 8
end

-- the position of the entry before position at
local function entryBefore(s, at)
  if s:byte(at - 1) == 128 then return at - 16 end
  return at - 8
end

-- the number of events in the window at t, and the position of their first entry
local function live(p, events, entries, t)
  local at = 1
  while at <= #entries do
    local when, n, after = entry(entries, at)
    if when + p.window > t then break end
    events, at = events - n, after
  end
  return events, at
end

-- live at the frontier, after which there are no entries. Reservations ahead leave many entries
-- behind that are not in its window, so it searches from both ends.
local function liveAhead(p)
  local s, t = p.entries, p.frontier
  local gone, at, events, back = 0, 1, 0, #s + 1
  while at <= #s do
    local when, n, after = entry(s, at)
    if when + p.window > t then break end
    gone, at = gone + n, after
    local from = entryBefore(s, back)
    when, n = entry(s, from)
    if when + p.window <= t then return events, back end
    events, back = events + n, from
  end
  return p.events - gone, at
end

local function packed(t, n)
  if n == 0 then return '' end
  if n == 1 then return pack('<I8', t) end
  return pack('<I8I7B', t, n, 128)
end

local function trim(p, t)
  local at
  p.events, at = live(p, p.events, p.entries, t)
  if at > 1 then p.entries = sub(p.entries, at) end
end

-- adds n events at t, keeping the entries in order of time. An entry has at most as many events
-- as given.
local function insert(p, t, n, most)
  local s, to = p.entries, #p.entries + 1
  while to > 1 do
    local at = entryBefore(s, to)
    local when, m = entry(s, at)
    if when < t then break end
    if when == t then
      local sum = min(m + n, max(m, most))
      p.events = p.events - m + sum
      p.entries = sub(s, 1, at - 1) .. packed(t, sum) .. sub(s, to)
      return
    end
    to = at
  end
  p.events = p.events + n
  p.entries = sub(s, 1, to - 1) .. packed(t, n) .. sub(s, to)
end

local function logFresh(p)
  if p.entries == '' then return p.frontier end
  return max(p.frontier, entry(p.entries, entryBefore(p.entries, #p.entries + 1)) + p.window)
end
--@@open
p.most, p.window, p.counted, pos = unpack('<ddB', request, pos)
p.grows, p.notes = true, p.counted == 1
p.need = 0 -- the most events that any decision waited for to leave the window
--@@load
p.events, p.frontier, p.entries = 0, 0, ''
if s ~= '' then
  local _
  p.events, _, p.frontier = unpack('<I8I8I8', s)
  p.entries = sub(s, 25)
end
p.eventsWere, p.entriesWere = p.events, p.entries
--@@ready
when = max(t, p.frontier)
local events, at, popped
if when > t then
  events, at = liveAhead(p)
  popped = live(p, p.events, p.entries, t) - events
else
  events, at = live(p, p.events, p.entries, when)
  popped = 0
end
while events + n > p.most do
  local first, m, after = entry(p.entries, at)
  events, at, popped = events - m, after, popped + m
  when = first + p.window
end
p.need = max(p.need, popped)
--@@spend
trim(p, now)
insert(p, t, n, 2 * p.most)
p.frontier = t
--@@refuse
-- of the events before now, only the newest p.most can affect a decision
trim(p, now)
local total = p.events
insert(p, now, n, 2 * p.most)
local before, last = p.events, #p.entries + 1
while last > 1 do
  local at = entryBefore(p.entries, last)
  local when, m = entry(p.entries, at)
  if when < now then break end
  before, last = before - m, at
end
local drop = min(p.events - total, before - p.most)
while drop > 0 do
  local first, m, after = entry(p.entries, 1)
  local gone = min(m, drop)
  p.events, drop = p.events - gone, drop - gone
  p.entries = packed(first, m - gone) .. sub(p.entries, after)
end
--@@fresh
when = logFresh(p)
--@@dump
s = ''
if p.events > 0 or p.frontier > 0 then
  s = pack('<I8I8I8', p.events, 3, p.frontier) .. p.entries
end
--@@view
-- omits the entries that have left the window, and combines those that no decision waited
-- for into one
if s ~= '' and not p.notes then
  local entries = p.entriesWere
  local count, from = live(p, p.eventsWere, entries, now)
  local at, left = from, count
  while at <= #entries and count - left < p.need do
    local _, m, after = entry(entries, at)
    left, at = left - m, after
  end
  local rest = ''
  if left > 0 then
    rest = packed(entry(entries, entryBefore(entries, #entries + 1)), left)
  end
  s = pack('<I8I8', count, 3) .. sub(s, 17, 24) .. sub(entries, from, at - 1) .. rest
end
--@@undoHelp
-- removes n[i] events at at[i], for each i. The instants are in order. The frontier falls to
-- the last remaining entry.
local function removeAll(p, at, n)
  local s, i = p.entries, #at
  local to, kept, pieces = #s + 1, #s, {} -- pieces are what remains from kept on, the last one first
  while to > 1 and i > 0 do
    local from = entryBefore(s, to)
    local when, m = entry(s, from)
    while i > 0 and at[i] > when do i = i - 1 end
    local rest = m
    while i > 0 and at[i] == when do
      rest, i = max(rest - n[i], 0), i - 1
    end
    if rest < m then
      pieces[#pieces + 1] = sub(s, to, kept)
      pieces[#pieces + 1] = packed(when, rest)
      p.events, kept = p.events - m + rest, from - 1
    end
    to = from
  end
  if #pieces == 0 then return end
  pieces[#pieces + 1] = sub(s, 1, kept)
  for i = 1, floor(#pieces / 2) do
    local j = #pieces + 1 - i
    pieces[i], pieces[j] = pieces[j], pieces[i]
  end
  s = table.concat(pieces)
  p.entries = s
  p.frontier = min(p.frontier, s ~= '' and entry(s, entryBefore(s, #s + 1)) or 0)
end

--@@cancelHelp
-- the counterpart of eventLog.cancel in slidinglog.go
local function logCancel(p, request, pos, now)
  local many
  many, pos = unpack('<I4', request, pos)
  local at, n = {}, {}
  for _ = 1, many do
    local when, due, events, times, _
    _, when, due, events, times, pos = unpack('<BdddI4', request, pos)
    if due >= now and (not p.notes or when >= now) then
      at[#at + 1], n[#n + 1] = when, events * times
    end
  end
  removeAll(p, at, n)
  return pos
end
--@@giveBack
if not p.notes then removeAll(p, {taken}, {n}) end
--@@cancel
pos = logCancel(p, request, pos, now)
--@@beyond
t = max(now, p.frontier)
--@@room
local events = live(p, p.events, p.entries, now)
room, p.need = events + n <= COUNTS, math.huge
--@@debt
p.need = math.huge
--@@charge
trim(p, now)
insert(p, t, n, COUNTS)
p.frontier = t
--@@refund
if not p.notes and taken + p.window > now then
  local before = p.events
  removeAll(p, {taken}, {n})
  changed = changed or p.events ~= before
end
