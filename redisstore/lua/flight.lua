-- What an InFlight does about holds: the counterpart of inflight.go. Their events are in the log at
-- their end, less the window.
--@@refunds
if p.frontier > now then -- a turn ahead, of another limit: it stays if its hold does, which the log does not say
  --@<other
end
p.removals[k] = {finish - min(finish, p.window), held}
--@@move
do
  local frontier, before = p.frontier, p.events
  local from, t = was - min(was, p.window), finish - min(finish, p.window)
  if n > 0 and from ~= t and p.events > 0 then
    removeAll(p, {{from, n}})
    local n, most = before - p.events, COUNTS
    if n > 0 then
      --@<insert
    end
    p.frontier = frontier
  end
end
