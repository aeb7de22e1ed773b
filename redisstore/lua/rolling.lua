-- RollingWindow: a ring (ring.lua) with a slot for each period of the window.
--# kind
local kind = 6
--# ready
when = t
if frontier > t then when = frontier end
--@ turn
local used = 0
if steps == 0 then used = latestCount end
local before = total - used -- the events in the other periods
while n + used > perSlot or n + used > limit - before do
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
