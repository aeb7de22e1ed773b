-- RollingWindow: a ring with a slot for each period of the window.
--@@ready
when = t
if p.frontier > t then when = p.frontier end
--@<turn
local used = 0
if ahead == 0 then used = p.count end
local before = total - used -- the events in the other periods
while n + used > p.perSlot or n + used > p.most - before do
  slot, ahead = slot + 1, ahead + 1
  when = slot * p.length
  if op < 2 then break end -- it only matters that they are not granted now
  before, used = before + used, 0
  if ahead <= p.slots then
    local place = slot % p.slots
    --@<count
    before = before - c
  end
end
