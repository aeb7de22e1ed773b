-- TokenBucket with RefillInterval. The state is the instant from which the refills are
-- counted, and the number of tokens missing at that instant.
--@@help
-- the same two numbers at t
local function refilled(p, t)
  local came = floor((t - p.anchor) / p.per)
  if came >= ceil(p.missing / p.refill) then return t, 0 end
  return p.anchor + came * p.per, p.missing - came * p.refill
end
--@@open
p.burst, p.refill, p.per, pos = unpack('<ddd', request, pos)
p.width = 16
--@@load
if s == '' then p.anchor, p.missing = 0, 0 else p.anchor, p.missing = unpack('<I8I8', s) end
--@@ready
when = max(t, p.anchor)
local anchor, missing = refilled(p, when)
if missing + n > p.burst then
  when = anchor + ceil((missing + n - p.burst) / p.refill) * p.per
end
--@@spend
p.anchor, p.missing = refilled(p, t)
p.missing = p.missing + n
--@@fresh
when = p.anchor + ceil(p.missing / p.refill) * p.per
--@@leave
if now > p.anchor then p.anchor, p.missing = refilled(p, now) end
p.perWas = p.per
--@@adopt
if p.per ~= p.perWas then p.anchor = max(p.anchor, now) end
--@@dump
s = pack('<I8I8', p.anchor, p.missing)
--@@giveBack
if now >= p.anchor then -- otherwise a reservation that is ahead counts on the tokens
  p.anchor, p.missing = refilled(p, now)
  p.missing = p.missing - min(p.missing, n)
end
--@@beyond
t = max(now, p.anchor)
--@@room
local anchor, missing = refilled(p, t)
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
    local anchor, missing = refilled(p, now)
    if alone > 0 and missing >= alone then
      p.anchor, p.missing, changed = anchor, missing - min(n, alone), true
    end
  end
end
