-- RollingWindow: a ring (ring.lua) with a slot for each period of the window.
--# ready
when = t
if frontier > t then when = frontier end
--@ turn
local used = 0
if steps == 0 then used = latestCount end
local before = total - used -- the events in the other periods
if n > perSlot or n > limit then
  when = LAST + 1 -- never: it is a turn that was reserved under a higher limit
else
  while n + used > perSlot or n + used > limit - before do
    if steps > slots then error('the sum is not that of the counts') end
    slot, steps = slot + 1, steps + 1
    when = slot * length
    if op < 2 then break end -- it only matters that they are not granted now
    before, used = before + used, 0
    if steps <= slots then
      local place = slot % slots
      --@ count
      before = before - c
    end
  end
end
