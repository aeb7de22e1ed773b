-- RollingWindow: a ring with a slot for each period of the window.
local rolling = setmetatable({}, {__index = ring})

local function left(p, before, within)
  local bucket = min(max(p.most - before, 0), p.perSlot)
  return max(bucket - within, 0)
end

function rolling.ready(p, now, n)
  now = max(now, p.frontier)
  local slot = floor(now / p.length)
  local within = at(p, slot)
  local before = sum(p, slot - p.slots + 1, slot) - within
  while left(p, before, within) < n do
    slot = slot + 1
    before = before + within - at(p, slot - p.slots)
    within = 0
    now = slot * p.length
  end
  return now
end

K[6] = rolling
