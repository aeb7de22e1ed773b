-- RollingWindow: a ring with a slot for each period of the window.
--@@help
-- how many events a period still permits, if there were before events in the other periods
-- and used events in this one
local function left(p, before, used)
  return max(min(max(p.most - before, 0), p.perSlot) - used, 0)
end
--@@ready
when = max(t, p.frontier)
local slot = floor(when / p.length)
local used = within(p, slot)
local before = sum(p, slot) - used
while left(p, before, used) < n do
  slot = slot + 1
  when = slot * p.length
  if op < 2 then break end -- it only matters that they are not granted now
  before, used = before + used - within(p, slot - p.slots), 0
end
