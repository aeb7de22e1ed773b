-- SlidingWindow: a ring with a slot for each segment of the window, and one more for the
-- oldest segment, whose count is weighted.
--@@ready
when = max(t, p.frontier)
--@<turn
local oldest = 0
if ahead < p.slots then oldest = count(p, (slot + 1) % p.slots) end
local full = total - oldest
while full + n > p.most do
  slot, ahead, oldest = slot + 1, ahead + 1, 0
  if op < 2 then -- it only matters that they are not granted now
    full = 0
    break
  end
  if ahead < p.slots then oldest = count(p, (slot + 1) % p.slots) end
  full = full - oldest
end
local spare = p.most - n - full
local fades = 0 -- the time from the start of the segment until the oldest one's weight leaves room for n
if oldest > spare then -- by spare / oldest of the segment's length, rounded down
  if spare * p.length < 9007199254740992 then
    fades = floor(spare * p.length / oldest)
  else
    --@<wide
    local high, low = product(spare, p.length, 0)
    fades = divide(high, low, oldest, p.length)
  end
  fades = p.length - fades
end
when = max(when, slot * p.length + fades)
