-- The script decides one request on several keys at one time: it spends the events of all of them
-- if all grant them, and otherwise of none. take.lua says how the files are joined. The parts of
-- all keys are in P, those of a key from first to many, and p.n is the number of events of the
-- part's key. A key of no events neither refuses nor changes.
--
-- KEYS[k]      a key
-- ARGV[1]      the time, or a negative number for the time of this server; the operation: 1 takes
--              the events, 0 spends nothing
-- ARGV[2*k]    of a key: whether its algorithm is an All, and the number of events; in the scripts for
--              holds, the ID of the hold, how long it lasts and its flags; if it is an All, the number of
--              its parts; for each part its kind and its constants; for each bucket the cost of the events
-- ARGV[2*k+1]  the prefix of the key's states
-- the others   the index of a key, and the prefix of states that it can use as if they were its own
--
-- The reply is the time, 0, whether the events were spent (1 or 0; in the script for holds, 65536
-- more for each hold that has ended without a request), and for each key the length of its state
-- and the state, from before; in the script for holds, 2^31 is added to the length if holds are
-- open, and 2^30 if turns are ahead. If a value cannot be used, nothing is changed, and the reply is
-- the time and 1; if turns of a key have come, it is the time, 7 and which key that is; and if a
-- value is not a state of the key's limit, the time, 8, which key that is and the value. Nothing is
-- written before all states are known, so a script that fails changes nothing.

--@ library
--@ shared

now, op = unpack('<dB', ARGV[1])
local timeGiven = now >= 0
if not timeGiven then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- the keys
local keys, notes = {}, false
many = 0
for k = 1, #KEYS do
  local tag = ARGV[2 * k + 1]
  local all, n
  request = ARGV[2 * k]
  --@ if not holding
  all, n, pos = unpack('<Bd', request)
  --@ end
  --@ if holding
  local id, lasts, flags
  all, n, id, lasts, flags, pos = unpack('<BdddB', request)
  local opens, lazily, ahead = false, false, false
  --@ end
  local count, growing = 1, 0
  if all == 1 then
    count, pos = unpack('<I2', request, pos)
  end
  first, many = many + 1, many + count
  for j = first, many do
    local kind
    kind, pos = unpack('<B', request, pos)
    local p = makers[kind]()
    P[j], p.n = p, n
    if p.grows then growing = growing + 1 end
    notes = notes or p.notes
  end
  for j = first, many do
    if P[j].priced then P[j].cost() end
  end
  local value = call('GET', KEYS[k]) or ''
  local prefix
  if sub(value, 1, #tag) == tag then
    prefix = #tag
  elseif all == 0 then
    local s, code, short = value, P[first].code
    --@ short
    if short then prefix = 0 end
  end
  for i = 2 * #KEYS + 2, #ARGV do
    local other = sub(ARGV[i], 5)
    if unpack('<I4', ARGV[i]) == k and sub(value, 1, #other) == other then prefix = #other end
  end
  if not prefix and sub(value, 2, #tag) == sub(tag, 2) then
    --@ if not holding
    return pack('<dB', now, 4)
    --@ end
    --@ if holding
    opens, ahead = byte(value) == 2, byte(value) == 3
    if opens or ahead then prefix = #tag end
    --@ end
  end
  if value ~= '' and not prefix then
    return pack('<dBI4', now, 8, k) .. value
  end
  value = sub(value, (prefix or 0) + 1)
  --@ if holding
  --@ aheadList
  if ahead and (unpack('<I8', turns, 9) <= now or holdsBefore and unpack('<I8', before, 9) <= now) then
    return pack('<dBI4', now, 7, k)
  end
  --@ openList
  --@ end
  local fits = true
  if all == 1 then
    --@ readParts
  else
    local p = P[first]
    if value ~= '' and prefix > 0 then
      fits = #value == (p.width or #value - #value % 8)
    end
    p.s = value
  end
  if not fits then
    return pack('<dB', now, 1)
  end
  for j = first, many do P[j].load(P[j].s) end
  local q = {first = first, many = many, growing = growing, all = all == 1, tag = tag, n = n}
  --@ if holding
  --@ endDue
  q.ended, q.held = ended, 0
  if notes then
    local held
    --@ heldEvents
    q.held = held
  end
  q.id, q.lasts, q.flags, q.size, q.form, q.flies, q.tells, q.over = id, lasts, flags, size, form, flies, tells, over
  q.listed = ahead and listed
  if ahead then
    for j = first, many do
      local p = P[j]
      if p.notes then
        --@ leave
      end
      p.ahead = true
    end
  end
  q.opens, q.front, q.older, q.young, q.firstEnd, q.lastEnd = opens, '', older, young, firstEnd, lastEnd
  q.wereOpen, q.wereOlder, q.wereYoung, q.wereFirst, q.wereLast = opens, older, young, firstEnd, lastEnd
  --@ end
  q.value = value
  keys[k] = q
end

-- the decision
local granted = op == 1
for j = 1, many do
  local p = P[j]
  local when = p.ready(now, p.n)
  --@ if holding
  if p.ahead then when = LAST end -- nothing is granted before the turns have come
  --@ end
  if when > now and p.n > 0 then granted = false end
end
local noted = op == 1 and not granted and notes
if granted then
  --@ if holding
  -- A hold lasts from when the events of all keys may happen. From when its own may, that is
  -- longer.
  local delay, delays = 0, {}
  for k = 1, #KEYS do
    delays[k] = 0
    for j = keys[k].first, keys[k].many do
      local p = P[j]
      if p.queue and p.n > 0 then delays[k] = max(delays[k], p.delay(now)) end
    end
    delay = max(delay, delays[k])
  end
  --@ end
  for k = 1, #KEYS do
    local q = keys[k]
    local tag, n, t = q.tag, q.n, now
    first, many = q.first, q.many
    if n > 0 then
      --@ if holding
      local id, lasts, flags, flies, tells, over = q.id, q.lasts + delay - delays[k], q.flags, q.flies, q.tells, q.over
      local opens, older, young, firstEnd, lastEnd, held = q.opens, q.older, q.young, q.firstEnd, q.lastEnd
      local front, rest, youngAt, wereYoung, wereList = '', '', 0 -- older was read
      size, form = q.size, q.form
      --@ opensHold
      --@ end
      for j = first, many do P[j].spend(t, n) end
      --@ if holding
      --@ opened
      q.over, q.tells, q.opens, q.front = over, tells, opens, front
      q.older, q.young, q.firstEnd, q.lastEnd = older, young, firstEnd, lastEnd
      --@ end
    end
  end
elseif noted then
  for k = 1, #KEYS do
    local q = keys[k]
    for j = q.first, q.many do
      if P[j].notes then P[j].refuse(q.n, q.held or 0) end
    end
  end
end

-- the answer, and the next states
--@ if calendar
if undecided then return pack('<dB', now, 1) end
--@ end
local reply, after, ttls, spent = {}, {}, {}, granted and 1 or 0
for k = 1, #KEYS do
  local q = keys[k]
  local value, tag, growing, outcome, whole = q.value, q.tag, q.growing, 0, false
  first, many = q.first, q.many
  --@ if holding
  local wereOpen, wereOlder, wereYoung, wereList = q.wereOpen, q.wereOlder, q.wereYoung
  local youngAt, tells, asks = 0, q.tells, not granted -- older was read
  size, form = q.size, q.form
  --@ tellBack
  --@ end
  if value ~= '' and not whole then
    if q.all then
      --@ tellParts
    elseif growing > 0 then
      value = P[first].view(value)
    end
  end
  local changed = granted and q.n > 0
  --@ if holding
  local opens, older, young, firstEnd, lastEnd = q.opens, q.older, q.young, q.firstEnd, q.lastEnd
  local front, rest, wereLength, wereFirst, wereLast = q.front, '', 0, q.wereFirst, q.wereLast
  local told = wereYoung
  --@ tellHolds
  if outcome == 5 then outcome = 2147483648 end -- the top bit of the length
  if q.listed then outcome, value = 1073741824, q.listed end -- the next bit
  changed = q.n > 0 and (granted or op == 1 and q.ended)
  --@ end
  reply[k + 1] = pack('<I4', outcome + #value) .. value
  if noted then
    for j = first, many do changed = changed or P[j].notes end
  end
  if changed then
    local fresh, mayShorten, state = now, true
    --@ if holding
    spent = spent + 65536 * q.over
    mayShorten = opens == 0
    --@ end
    if q.all then
      --@ writeParts
    else
      --@ writePart
    end
    --@ if holding
    --@ writeHolds
    --@ end
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
