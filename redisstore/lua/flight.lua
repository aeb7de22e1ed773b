-- What an InFlight does about holds: the counterpart of inflight.go. Their events are in the log at
-- their end, less the window.
--@@markSize
levels = true
--@@refunds
local frontier = p.frontier
removeAll(p, {finish - min(finish, p.window)}, {held})
if p.events > 0 and frontier > now then
  -- The frontier is the latest turn of another hold, or of a reservation without one.
  tells = 2
  local last, within = 0, {} -- by instant, the events in the log that are of other holds
  local function other(entry, from)
    local _, finish, events = unpack('<I8I8I8', entry, from)
    local at = finish - min(finish, p.window)
    within[at] = (within[at] or 0) + (events - events % 2) / 2
    last = max(last, unpack('<I8', entry, from + p.markAt - 1) - 1)
  end
  for from = 1, #others, size do other(others, from) end
  local over = 1
  for j = 1, #list / size do
    if over <= k and j == out[over] then
      over = over + 1
    else
      other(list, (j - 1) * size + 1)
    end
  end
  local entries, to = p.entries, #p.entries + 1
  while to > 1 do
    --@<before
    --@<entry
    if first <= last then break end
    if m > (within[first] or 0) then last = first end
    to = from
  end
  p.frontier = min(frontier, last)
end
--@@move
do
  local frontier, before = p.frontier, p.events
  local from, t = was - min(was, p.window), finish - min(finish, p.window)
  if n > 0 and from ~= t and p.events > 0 then
    removeAll(p, {from}, {n})
    local n, most = before - p.events, COUNTS
    if n > 0 then
      --@<insert
    end
    p.frontier = frontier
  end
end
