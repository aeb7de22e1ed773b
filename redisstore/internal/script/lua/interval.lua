-- TokenBucket with RefillInterval. take.lua describes the blocks.
--
-- Constants: the burst, the tokens of a refill, and the time between two refills.
-- State: the instant from which the refills are counted, and the number of tokens missing at that
-- instant.
--# opening
local _, burst, refill, per, now, op, times, n, wait, pos = unpack('<BddddBI4dd', request)
--# constants
local burst, refill, per
burst, refill, per, pos = unpack('<ddd', request, pos)
--# traits
width = 16, drifts = true,
markSize = 8, markForm = 'I8', levels = true,
--# state
local anchor, missing
--# fits
fits = #s == 16
--# load
if s == '' then anchor, missing = 0, 0 else anchor, missing = unpack('<I8I8', s) end
--# refilled
-- Sets base and lacks to the same two numbers at when.
local base, lacks = when, 0
local since = when - anchor
since = since - since % per
local came = since / per * refill
if came < missing then base, lacks = anchor + since, missing - came end
--# refill
-- Sets due to the time from a refill until so many tokens have come.
local due = (tokens + -tokens % refill) / refill * per
--# ready
when = t
if anchor > t then when = anchor end
--@ refilled
local tokens = lacks + n - burst
if tokens > 0 then
  --@ refill
  when = base + due
end
--# spend
local when = t
--@ refilled
anchor, missing = base, lacks + n
--# fresh
local tokens = missing
--@ refill
when = anchor + due
--# dump
s = pack('<I8I8', anchor, missing)
--# beyond
t = now
if anchor > t then t = anchor end
--# room
local when = t
--@ refilled
room = lacks + n <= max(min(floor((LAST - base) / per) * refill, COUNTS), burst)
--# charge
--@ spend
--# lacking
-- Sets lacks to the tokens that are missing at t, or at the instant of a reservation ahead.
local when = t
if anchor > t then when = anchor end
--@ refilled
--# mark
--@ lacking
mark = pack('<I8', lacks + n)
--# passMark
--@ lacking
if lacks < unpack('<I8', mark) then mark = pack('<I8', lacks) end
--# leasts
-- Sets leasts to the least that was missing since each hold.
--@ words
--@ lacking
local each = size / 8
local k, a, least = #out, #words - each + (p.markAt + 7) / 8, lacks
words[a] = min(words[a], lacks)
local leasts, sum = {}, 0
for i = #list / size, out[1], -1 do
  if words[a] < least then least = words[a] end
  if i == out[k] then
    leasts[k], k = least, k - 1
  end
  a = a - each
end
p.merged = pack('<I8', least)
--# refunds
-- The instants of refills stay as they are.
local more = min(unused, leasts[k] - sum)
sum = sum + more
leasts[k] = sum -- what has come back since
do
  --@ lacking
  if now > anchor then anchor, missing = base, lacks end
end
missing = missing - min(missing, more)
--# lower
-- What has come back is missing no more since. The mark of a hold that has ended stands for the
-- time since the next older one.
k, a = 1, (out[1] - 1) * each + (p.markAt + 7) / 8
local came, kept = 0
if out[1] > 1 then kept = a - each end
for i = out[1], #list / size do
  local gone = i == out[k]
  if gone then
    came, k = leasts[k], k + 1
  end
  local rest = words[a] - came
  if not gone then
    words[a], kept = rest, a
  elseif kept and rest < words[kept] then
    words[kept] = rest
  end
  a = a + each
end
