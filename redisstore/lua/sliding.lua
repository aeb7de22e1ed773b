-- SlidingWindow: a ring with a slot for each segment of the window, and one more for the
-- oldest segment, whose count is weighted.
--@@help
-- a * b as high * 2^52 + low. a and b are at most 2^51: products of their halves, of 26 and
-- 25 bits, are below 2^52.
local function product(a, b)
  local h = 67108864 -- 2^26
  local a1, b1 = floor(a / h), floor(b / h)
  local a0, b0 = a - a1 * h, b - b1 * h
  local mid = a1 * b0 + a0 * b1
  local mid1 = floor(mid / h)
  local low = a0 * b0 + (mid - mid1 * h) * h
  local carry = floor(low / 4503599627370496)
  return a1 * b1 + mid1 + carry, low - carry * 4503599627370496
end

-- the greatest q with q * b <= a * c. All are at most 2^51, and a < b, so q < c.
local function share(a, b, c)
  if a * c < 9007199254740992 then return floor(a * c / b) end
  local high, low = product(a, c)
  local function fits(q)
    local h, l = product(q, b)
    return h < high or h == high and l <= low
  end
  local q = min(floor(a / b * c), c) -- off by a few at most
  while not fits(q) do q = q - 1 end
  while fits(q + 1) do q = q + 1 end
  return q
end
--@@ready
when = max(t, p.frontier)
local slot = floor(when / p.length)
local full, oldest = sum(p, slot - p.slots + 2, slot), within(p, slot - p.slots + 1)
while full + n > p.most do
  slot = slot + 1
  oldest = within(p, slot - p.slots + 1)
  full = full - oldest
end
local spare = p.most - n - full
local fades = 0 -- the time from the start of the segment until the oldest one's weight leaves room for n
if oldest > spare then fades = p.length - share(spare, oldest, p.length) end
when = max(when, slot * p.length + fades)
