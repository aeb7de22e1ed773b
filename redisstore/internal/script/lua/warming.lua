-- WarmingUp. take.lua describes the blocks. The operations and their order are the same as in
-- warmingup.go, so that they give the same doubles.
--
-- Constants: those of internal/warmup, in nanoseconds.
-- State: the warmth, and the next free time as whole microseconds and nanoseconds.
--# opening
local _, stable, slope, threshold, capacity, cooldown, now, op, times, n, wait, pos =
  unpack('<BddddddBI4dd', request)
--# constants
local stable, slope, threshold, capacity, cooldown
stable, slope, threshold, capacity, cooldown, pos = unpack('<ddddd', request, pos)
--# traits
width = 24, drifts = true,
markSize = 32, markForm = 'dddd',
--# state
local warmth, free, freeNs
--# fits
fits = #s == 24
--# load
if s == '' then warmth, free, freeNs = 0, 0, 0 else warmth, free, freeNs = unpack('<dI8I8', s) end
--# cold
-- Sets cold to the instant from which the warmth is 0, rounded up twice.
local cold = warmth * cooldown
if cold % 1 > 0 then cold = cold - cold % 1 + 1 end
cold = (freeNs + cold) / 1000
if cold % 1 > 0 then cold = cold - cold % 1 + 1 end
cold = free + cold
--# remains
-- Sets remains to what is left of the warmth at t. Before cold, idle is less than warmth *
-- cooldown. All these nanoseconds are below 2^53, as a limiter here warms up within 30 days, and
-- rounding keeps the order of numbers, so the difference is not negative.
--@ cold
local remains = 0
if t < cold then
  remains = warmth
  local idle = (t - free) * 1000 - freeNs
  if idle > 0 then remains = remains - idle / cooldown end
end
--# ready
when = free
if freeNs > 0 then when = when + 1 end
if when < t then when = t end
--# spend
--@ remains
local stored = capacity - remains
local taken = n
if stored < n then taken = stored end
local cost = taken * stable
local above = stored - threshold
if above > 0 then
  local part = taken
  if above < part then part = above end
  cost = cost + slope * part * (above - part / 2)
end
cost = cost + (n - taken) * stable
local ns = cost - cost % 1 -- rounded half up
if cost - ns >= 0.5 then ns = ns + 1 end
local low = ns % 4294967296 -- 2^32, which is 4294967 * 1000 + 296
local high = (ns - low) / 4294967296
low = low + high * 296
freeNs = low % 1000
warmth, free = remains + taken, t + high * 4294967 + (low - freeNs) / 1000
--# fresh
--@ cold
when = cold
--# dump
s = pack('<dI8I8', warmth, free, freeNs)
--# beyond
t = free
if freeNs > 0 then t = t + 1 end
if t < now then t = now end
--# room
local cost = capacity * stable -- of all stored permits, when cold
local above = capacity - threshold
if above > 0 then
  local part = min(capacity, above)
  cost = cost + slope * part * (above - part / 2)
end
local last = LAST - t - math.ceil(math.ceil(cost) / 1000)
room = last > 0 and n <= min(floor(last * 1000 / stable), COUNTS)
--# charge
--@ spend
--# mark
local s
--@ dump
mark = pack('<I8', t + 1) .. s
--# refunds
-- All of them, if nothing was granted since.
local at, warmthWas, freeWas, nsWas = unpack('<I8dI8I8', mark)
if at > 0 and unused > 0 then
  local s
  --@ dump
  local after = s
  warmth, free, freeNs = warmthWas, freeWas, nsWas
  do
    local n, t = held, at - 1
    --@ spend
  end
  --@ dump
  if s == after then
    warmth, free, freeNs = warmthWas, freeWas, nsWas
    if held > unused then
      local n, t = held - unused, at - 1
      --@ spend
    end
  else
    warmth, free, freeNs = unpack('<dI8I8', after)
  end
end
