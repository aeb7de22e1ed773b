-- SlidingWindow: a ring with a slot for each segment of the window, and one more for the
-- oldest segment, whose count is weighted.
--@@ready
when = t
if p.frontier > t then when = p.frontier end
--@<turn
if total + n > p.most then -- otherwise there is room, whatever the weight of the oldest
  local full, oldest = total
  while true do
    local place = (slot + 1) % p.slots
    --@<count
    oldest = c
    full = full - oldest
    if full + n <= p.most then break end
    slot, ahead = slot + 1, ahead + 1
    if op < 2 then -- it only matters that they are not granted now
      full, oldest = 0, 0
      break
    end
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
  fades = slot * p.length + fades
  if fades > when then when = fades end
end
