-- SlidingWindow: a ring (ring.lua) with a slot for each segment of the window, and one more for the
-- oldest segment, whose count is weighted.
--# ready
when = t
if frontier > t then when = frontier end
--@ turn
if n > limit then
  when = LAST + 1 -- never: it is a turn that was reserved under a higher limit
elseif total + n > limit then -- otherwise there is room, whatever the weight of the oldest
  local full, oldest = total
  while true do
    local place = (slot + 1) % slots
    --@ count
    oldest = c
    full = full - oldest
    if full + n <= limit then break end
    if steps > slots then error('the sum is not that of the counts') end
    slot, steps = slot + 1, steps + 1
    if op < 2 then -- it only matters that they are not granted now
      full, oldest = 0, 0
      break
    end
  end
  local spare = limit - n - full
  local fades = 0 -- the time from the start of the segment until the oldest one's weight leaves room for n
  if oldest > spare then -- by spare / oldest of the segment's length, rounded down
    if spare * length < 9007199254740992 then
      fades = math.floor(spare * length / oldest)
    else
      --@ wide
      local high, low = product(spare, length, 0)
      fades = divide(high, low, oldest, length)
    end
    fades = length - fades
  end
  fades = slot * length + fades
  if fades > when then when = fades end
end
