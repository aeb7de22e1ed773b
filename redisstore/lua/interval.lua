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
--@@markSize
p.markSize = 8
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
--@@merge
mark = pack('<I8', min(unpack('<I8', mark), (unpack('<I8', entry, p.markAt))))
--@@refunds
-- first the least that was missing since the hold. The instants of refills stay as they are.
--@<missing
local least
for j = i, #entries do
  local since = unpack('<I8', entries[j], p.markAt)
  if j == #entries and missing < since then
    since = missing
    entries[j] = sub(entries[j], 1, p.markAt - 1) .. pack('<I8', since) .. sub(entries[j], p.markAt + 8)
  end
  if not least or since < least then least = since end
end
p.merged = pack('<I8', least)
local back = min(unused, least)
if back > 0 then
  for j = i, #entries do
    local since = unpack('<I8', entries[j], p.markAt)
    entries[j] = sub(entries[j], 1, p.markAt - 1) .. pack('<I8', since - back) .. sub(entries[j], p.markAt + 8)
  end
end
if now > p.anchor then p.anchor, p.missing = anchor, missing end
p.missing = p.missing - min(p.missing, back)
