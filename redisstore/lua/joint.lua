-- The script decides one request on several keys at one time: it spends the events of all of them
-- if all grant them, and otherwise of none. It is a template like driver.lua, which describes the
-- sections. Each part p of a key is one of P; --@<each is a loop over those from first to many,
-- in which n is the number of events of the part's key. A key of no events neither refuses nor
-- changes.
--
-- KEYS[k]      a key
-- ARGV[1]      the time, or a negative number for the time of this server; the operation: 1 takes
--              the events, 0 spends nothing
-- ARGV[2*k]    of a key: whether its algorithm is an All, and the number of events; in the scripts for
--              holds, the ID of the hold, how long it lasts and its flags; if it is an All, the number of
--              its parts; for each part its kind and its constants; for each bucket the cost of the events
-- ARGV[2*k+1]  the prefix of the key's states
--
-- The reply is the time, 0, whether the events were spent (1 or 0; in the script for holds, 65536
-- more for each hold that has ended without a request), and for each key the length of its
-- state and the state, from before; in the script for holds, 2^31 is added to the length if holds are
-- open, and 2^30 if turns are ahead. If a value is not a state of the key's limit, nothing is
-- changed, and the reply is the time and 1; if turns of a key have come, it is the time, 7 and which key
-- that is. Nothing is written before all states are known, so a
-- script that fails changes nothing.

--@<library
--@@holding
local COUNTS = 2251799813685248 -- 2^51, the greatest count in a state
--@@always

local now, op = unpack('<dB', ARGV[1])
local timeGiven = now >= 0
if not timeGiven then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- the keys
local keys, P, notes = {}, {}, false
local many, first = 0
for k = 1, #KEYS do
  local request, tag = ARGV[2 * k], ARGV[2 * k + 1]
  --@@closed
  local all, n, pos = unpack('<Bd', request)
  --@@holding
  local all, n, id, lasts, flags, pos = unpack('<BdddB', request)
  local opens, lazily, ahead = false, false, false
  --@@always
  local last, growing = many + 1, 0
  first = many + 1
  if all == 1 then
    last, pos = unpack('<I2', request, pos)
    last = many + last
  end
  for j = first, last do
    --@<table
    p.kind, pos = unpack('<B', request, pos)
    --@<open
    p.n = n
    P[j] = p
    if p.grows then growing = growing + 1 end
    notes = notes or p.notes
  end
  many = last
  --@<each
    if p.unit then
      p.costTicks, p.costUnits, pos = unpack('<dd', request, pos)
    end
  end
  local value = call('GET', KEYS[k]) or ''
  local from
  if sub(value, 1, #tag) == tag then
    from = #tag
  elseif all == 0 then
    local p, s = P[first], value
    --@<short
  end
  if not from and sub(value, 2, #tag) == sub(tag, 2) then
    --@@closed
    return pack('<dB', now, 4)
    --@@holding
    opens, ahead = byte(value) == 2, byte(value) == 3
    if opens or ahead then from = #tag end
    --@@always
  end
  if value ~= '' and not from then
    return pack('<dB', now, 1)
  end
  value = sub(value, (from or 0) + 1)
  --@@holding
  --@<aheadList
  if ahead and (unpack('<I8', turns, 9) <= now or holdsBefore and unpack('<I8', before, 9) <= now) then
    return pack('<dBI4', now, 7, k)
  end
  --@<openList
  --@@always
  local fits = true
  if all == 1 then
    --@<readParts
  else
    local p, s = P[first], value
    if s ~= '' and from > 0 then
      fits = #s == (p.width or #s - #s % 8)
    end
    p.s = s
  end
  if not fits then
    return pack('<dB', now, 1)
  end
  --@<each
    local s = p.s
    --@<load
  end
  local q = {first = first, many = many, growing = growing, all = all == 1, tag = tag, value = value, n = n}
  --@@holding
  local s
  --@<endDue
  q.value, q.ended = value, ended
  if notes then
    local held
    --@<heldEvents
  end
  q.id, q.lasts, q.flags, q.size, q.flies, q.tells, q.over = id, lasts, flags, size, flies, tells, over
  q.listed = ahead and listed
  if ahead then
    --@<each
      if p.notes then
        --@<other
      end
      p.ahead = true
    end
  end
  q.opens, q.front, q.older, q.young, q.firstEnd, q.lastEnd = opens, '', older, young, firstEnd, lastEnd
  q.wereOpen, q.wereOlder, q.wereYoung, q.wereFirst, q.wereLast = opens, older, young, firstEnd, lastEnd
  --@@always
  keys[k] = q
end

-- the decision
local granted = op == 1
first = 1
--@<each
  local t, when = now
  --@<ready
  --@@holding
  if p.ahead then when = LAST end -- nothing is granted before the turns have come
  --@@always
  if when > now and n > 0 then granted = false end
end
local noted = op == 1 and not granted and notes
if granted then
  --@@closed
  --@<each
    if n > 0 then
      local t = now
      --@<spend
    end
  end
  --@@holding
  local all = many
  -- A hold lasts from when the events of all keys may happen. From when its own may, that is longer.
  local delay, delays = 0, {}
  for k = 1, #KEYS do
    delays[k] = 0
    first, many = keys[k].first, keys[k].many
    --@<each
      if p.queue and n > 0 then
        local t, when = now
        --@<hold
        delays[k] = max(delays[k], when)
      end
    end
    delay = max(delay, delays[k])
  end
  for k = 1, #KEYS do
    local q = keys[k]
    local n, t = q.n, now
    if n > 0 then
      q.lasts = q.lasts + delay - delays[k]
      first, many = q.first, q.many
      local id, lasts, flags, size, flies, tells, over = q.id, q.lasts, q.flags, q.size, q.flies, q.tells, q.over
      local opens, older, young, firstEnd, lastEnd, held = q.opens, q.older, q.young, q.firstEnd, q.lastEnd
      local front, rest, youngAt, wereYoung, wereList = '', '', 0 -- older was read
      --@<opensHold
      --@<each
        --@<spend
      end
      --@<opened
      q.over, q.tells, q.opens, q.front = over, tells, opens, front
      q.older, q.young, q.firstEnd, q.lastEnd = older, young, firstEnd, lastEnd
    end
  end
  first, many = 1, all
  --@@always
elseif noted then
  --@<each
    if p.notes then
      --@<refuse
    end
  end
end

-- the answer, and the next states
local reply, after, ttls, spent = {}, {}, {}, granted and 1 or 0
for k = 1, #KEYS do
  local q = keys[k]
  local value, tag, growing = q.value, q.tag, q.growing
  first, many = q.first, q.many
  --@@holding
  local wereOpen, wereOlder, wereYoung, wereList = q.wereOpen, q.wereOlder, q.wereYoung
  local size, youngAt, tells, whole, asks = q.size, 0, q.tells, false, not granted -- older was read
  --@<tellBack
  if value ~= '' and not whole then
  --@@closed
  if value ~= '' then
  --@@always
    if q.all then
      --@<tellParts
    elseif growing > 0 then
      local p, s = P[first], value
      --@<view
      value = s
    end
  end
  --@@closed
  reply[k + 1] = pack('<I4', #value) .. value
  local changed = granted and P[first].n > 0
  --@@holding
  local opens, older, young, firstEnd, lastEnd = q.opens, q.older, q.young, q.firstEnd, q.lastEnd
  local front, rest, wereLength, wereFirst, wereLast = q.front, '', 0, q.wereFirst, q.wereLast
  local told = wereYoung
  --@<tellHolds
  if outcome == 5 then outcome = 2147483648 end -- the top bit of the length
  if q.listed then outcome, value = 1073741824, q.listed end -- the next bit
  reply[k + 1] = pack('<I4', outcome + #value) .. value
  local changed = P[first].n > 0 and (granted or op == 1 and q.ended)
  --@@always
  if noted then
    --@<each
      changed = changed or p.notes
    end
  end
  if changed then
    --@@holding
    spent = spent + 65536 * q.over
    --@@always
    local fresh, state = now
    if q.all then
      --@<writeParts
    else
      local p, s = P[first], q.value
      --@@holding
      if opens > 0 then p.code = -1 end -- no short form
      --@@always
      --@<writePart
    end
    --@@holding
    --@<writeHolds
    --@@always
    local ttl = fresh - now
    if ttl > LAST then ttl = LAST end
    ttl = (ttl - ttl % 1000) / 1000 + 1 -- in milliseconds: rounded up, or one more
    if timeGiven then ttl = ttl + 3600000 end -- an hour more, because the given time is not this server's
    after[k], ttls[k] = state, format('%d', ttl)
  end
end
for k = 1, #KEYS do
  if after[k] then call('PSETEX', KEYS[k], ttls[k], after[k]) end
end
reply[1] = pack('<dBd', now, 0, spent)
return table.concat(reply)
