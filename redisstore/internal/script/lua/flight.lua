-- InFlight: a log (log.lua) of events that end when they are released or, at the latest, after the
-- timeout: the counterpart of inflight.go. The events of holds are in the log at their end, less
-- the window.
--# refunds
removals[k] = {finish - min(finish, window), held}
--# move
do
  local latest, before = frontier, total
  local to = finish - min(finish, window)
  local from = was and was - min(was, window) or frontier
  if n > 0 and from ~= to and total > 0 then
    local removals = {{from, n}}
    --@ remove
    local n, t, most = before - total, to, COUNTS
    if n > 0 then
      --@ insert
    end
    frontier = latest
  end
end
