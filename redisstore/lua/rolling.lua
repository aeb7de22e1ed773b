-- RollingWindow: a ring with a slot for each period of the window.
--@@ready
when = max(t, p.frontier)
--@<turn
local used = 0
if ahead == 0 then used = count(p, slot % p.slots) end
local before = total - used -- the events in the other periods
while max(min(max(p.most - before, 0), p.perSlot) - used, 0) < n do
  slot, ahead = slot + 1, ahead + 1
  when = slot * p.length
  if op < 2 then break end -- it only matters that they are not granted now
  before, used = before + used, 0
  if ahead <= p.slots then before = before - count(p, slot % p.slots) end
end
