-- Products of two numbers up to 2^51, as high * 2^52 + low. Few calls need them, so kernels
-- insert this block where they do.
--# wide
local floor, min = math.floor, math.min
local WIDE = 4503599627370496 -- 2^52

-- a * b + c. The halves of a and b have 26 and 25 bits, so their products are below 2^52.
local function product(a, b, c)
  local h = 67108864 -- 2^26
  local a1, b1 = floor(a / h), floor(b / h)
  local a0, b0 = a - a1 * h, b - b1 * h
  local mid = a1 * b0 + a0 * b1
  local mid1 = floor(mid / h)
  local low = a0 * b0 + (mid - mid1 * h) * h
  local carry = floor(low / WIDE)
  low = low - carry * WIDE + c
  local second = floor(low / WIDE)
  return a1 * b1 + mid1 + carry + second, low - second * WIDE
end

-- the greatest q up to most with q * b <= high * 2^52 + low, and the difference, which is
-- exact if q is less than most
local function divide(high, low, b, most)
  local q = min(floor((high * WIDE + low) / b), most) -- off by one at most
  local h, l = product(q, b, 0)
  for _ = 1, 2 do
    if h < high or h == high and l <= low then break end
    q = q - 1
    h, l = product(q, b, 0)
  end
  for _ = 1, 2 do
    if q >= most then break end
    local h2, l2 = product(q + 1, b, 0)
    if h2 > high or h2 == high and l2 > low then break end
    q, h, l = q + 1, h2, l2
  end
  return q, (high - h) * WIDE + low - l
end
