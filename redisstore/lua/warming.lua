-- WarmingUp. The state is the warmth, and the next free time as whole microseconds and
-- nanoseconds. The operations and their order are the same as in warmingup.go, so that they
-- give the same doubles.
--@@cold
-- sets cold to the instant from which the warmth is 0, rounded up twice
local cold = p.warmth * p.cooldown
if cold % 1 > 0 then cold = cold - cold % 1 + 1 end
cold = (p.ns + cold) / 1000
if cold % 1 > 0 then cold = cold - cold % 1 + 1 end
cold = p.free + cold
--@@open
p.stable, p.slope, p.threshold, p.stored, p.cooldown, pos = unpack('<ddddd', request, pos)
p.width = 24
--@@load
if s == '' then p.warmth, p.free, p.ns = 0, 0, 0 else p.warmth, p.free, p.ns = unpack('<dI8I8', s) end
--@@remains
-- sets warmth to what remains of it at t. Before cold, idle is less than p.warmth * p.cooldown. All
-- these nanoseconds are below 2^53, as a limiter here warms up within 30 days, and rounding keeps
-- the order of numbers, so the difference is not negative.
--@<cold
local warmth = 0
if t < cold then
  warmth = p.warmth
  local idle = (t - p.free) * 1000 - p.ns
  if idle > 0 then warmth = warmth - idle / p.cooldown end
end
--@@ready
when = p.free
if p.ns > 0 then when = when + 1 end
if when < t then when = t end
--@@spend
--@<remains
local stored = p.stored - warmth
local taken = n
if stored < n then taken = stored end
local cost = taken * p.stable
local above = stored - p.threshold
if above > 0 then
  local part = taken
  if above < part then part = above end
  cost = cost + p.slope * part * (above - part / 2)
end
cost = cost + (n - taken) * p.stable
local ns = cost - cost % 1 -- rounded half up
if cost - ns >= 0.5 then ns = ns + 1 end
local low = ns % 4294967296 -- 2^32, which is 4294967 * 1000 + 296
local high = (ns - low) / 4294967296
low = low + high * 296
p.ns = low % 1000
p.warmth, p.free = warmth + taken, t + high * 4294967 + (low - p.ns) / 1000
--@@fresh
--@<cold
when = cold
--@@dump
s = pack('<dI8I8', p.warmth, p.free, p.ns)
--@@beyond
t = p.free
if p.ns > 0 then t = t + 1 end
if t < now then t = now end
--@@room
local cost = p.stored * p.stable -- of all stored permits, when cold
local above = p.stored - p.threshold
if above > 0 then
  local part = min(p.stored, above)
  cost = cost + p.slope * part * (above - part / 2)
end
local last = LAST - t - ceil(ceil(cost) / 1000)
room = last > 0 and n <= min(floor(last * 1000 / p.stable), COUNTS)
--@@markSize
p.markSize, form = 32, form .. 'dddd'
--@@mark
local s
--@<dump
mark = pack('<I8', t + 1) .. s
--@@refunds
-- all, if nothing was granted since
local at, warmth, free, ns = unpack('<I8dI8I8', mark)
if at > 0 and unused > 0 then
  local s
  --@<dump
  local after = s
  p.warmth, p.free, p.ns = warmth, free, ns
  do
    local n, t = held, at - 1
    --@<spend
  end
  --@<dump
  if s == after then
    p.warmth, p.free, p.ns = warmth, free, ns
    if held > unused then
      local n, t = held - unused, at - 1
      --@<spend
    end
  else
    p.warmth, p.free, p.ns = unpack('<dI8I8', after)
  end
end
