-- TokenBucket with RefillInterval. The state is the instant from which the refills are
-- counted, and the number of tokens missing at that instant.
--@@refilled
-- sets anchor and missing to the same two numbers at when
local anchor, missing = when, 0
local since = when - p.anchor
since = since - since % p.per
local came = since / p.per * p.refill
if came < p.missing then anchor, missing = p.anchor + since, p.missing - came end
--@@refill
-- sets due to the time from a refill until so many tokens have come
local due = (tokens + -tokens % p.refill) / p.refill * p.per
--@@open
p.burst, p.refill, p.per, pos = unpack('<ddd', request, pos)
p.width = 16
--@@load
if s == '' then p.anchor, p.missing = 0, 0 else p.anchor, p.missing = unpack('<I8I8', s) end
--@@ready
when = t
if p.anchor > t then when = p.anchor end
--@<refilled
local tokens = missing + n - p.burst
if tokens > 0 then
  --@<refill
  when = anchor + due
end
--@@spend
local when = t
--@<refilled
p.anchor, p.missing = anchor, missing + n
--@@fresh
local tokens = p.missing
--@<refill
when = p.anchor + due
--@@dump
s = pack('<I8I8', p.anchor, p.missing)
--@@beyond
t = now
if p.anchor > t then t = p.anchor end
--@@room
local when = t
--@<refilled
room = missing + n <= max(min(floor((LAST - anchor) / p.per) * p.refill, COUNTS), p.burst)
--@@markSize
p.markSize, form, levels = 8, form .. 'I8', true
--@@missing
-- sets missing to the tokens that are missing at t, or at the instant of a reservation ahead
local when = t
if p.anchor > t then when = p.anchor end
--@<refilled
--@@mark
--@<missing
mark = pack('<I8', missing + n)
--@@passMark
--@<missing
if missing < unpack('<I8', mark) then mark = pack('<I8', missing) end
--@@leasts
-- the least that was missing since each hold
--@<words
--@<missing
local each = size / 8
local k, a, least = #out, #words - each + (p.markAt + 7) / 8, missing
words[a] = min(words[a], missing)
p.leasts, p.back = {}, 0
for i = #list / size, out[1], -1 do
  if words[a] < least then least = words[a] end
  if i == out[k] then
    p.leasts[k], k = least, k - 1
  end
  a = a - each
end
p.merged = pack('<I8', least)
--@@refunds
-- The instants of refills stay as they are.
local back = min(unused, p.leasts[k] - p.back)
p.back = p.back + back
p.leasts[k] = p.back -- what has come back since
--@<missing
if now > p.anchor then p.anchor, p.missing = anchor, missing end
p.missing = p.missing - min(p.missing, back)
--@@lower
-- What has come back is missing no more since. The mark of a hold that has ended stands for the time
-- since the next older one.
local each = size / 8
local k, a, back, kept = 1, (out[1] - 1) * each + (p.markAt + 7) / 8, 0
if out[1] > 1 then kept = a - each end
for i = out[1], #list / size do
  local gone = i == out[k]
  if gone then
    back, k = p.leasts[k], k + 1
  end
  local least = words[a] - back
  if not gone then
    words[a], kept = least, a
  elseif kept and least < words[kept] then
    words[kept] = least
  end
  a = a + each
end
