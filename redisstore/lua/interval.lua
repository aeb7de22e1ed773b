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
--@@giveBack
if now >= p.anchor then -- otherwise a reservation that is ahead counts on the tokens
  local when = now
  --@<refilled
  p.anchor, p.missing = anchor, missing - min(missing, n)
end
--@@beyond
t = now
if p.anchor > t then t = p.anchor end
--@@room
local when = t
--@<refilled
room = missing + n <= max(min(floor((LAST - anchor) / p.per) * p.refill, COUNTS), p.burst)
--@@refund
-- as much as would be missing now if nothing but the hold had been taken
local preAnchor, preMissing, postAnchor, postMissing
preAnchor, preMissing, postAnchor, postMissing, pos = unpack('<I8I8I8I8', request, pos)
if taken <= now then -- otherwise they are reserved for later
  if p.anchor == postAnchor and p.missing == postMissing then
    if left == 0 then
      p.anchor, p.missing = preAnchor, preMissing
    else
      p.missing = p.missing - n
    end
    changed = true
  elseif now >= p.anchor and now >= postAnchor then -- otherwise a reservation that is ahead counts on the tokens
    local alone = held - floor((now - postAnchor) / p.per) * p.refill
    local when = now
    --@<refilled
    if alone > 0 and missing >= alone then
      p.anchor, p.missing, changed = anchor, missing - min(n, alone), true
    end
  end
end
