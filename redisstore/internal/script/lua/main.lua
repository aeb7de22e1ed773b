-- The script for an All, and for any algorithm while holds are open or turns ahead. take.lua says
-- what it decides, what its arguments and its reply are, and how the files are joined.
--
-- In the script that knows holds and turns (holds.lua and ahead.lua), the costs of one event in
-- each bucket follow on the time, and of a request about a hold its ID, how long it lasts (op 2, 3
-- and 6; see call.go) or how many events it has (op 5), and a byte of flags. If holds are open, it
-- replies with 5 instead of 0 or, if turns are ahead, with 6 and the value without its prefix. To
-- the number of requests granted, it adds 65536 for each hold that has ended without a request, and
-- for each op 8 the remainder of the events granted divided by 32.

--@ library
--@ shared

-- the parts
local tag = ARGV[2]
request, pos = ARGV[1], 1
--@ if not all
pos = 2 -- behind the kind
local p = make()
P = {p}
local notes, growing = p.notes, p.grows and 1 or 0
--@ end
--@ if all
local all, notes, growing = 1, false, 0
many, pos = unpack('<I2', request)
for j = 1, many do
  local kind
  kind, pos = unpack('<B', request, pos)
  local p = makers[kind]()
  P[j] = p
  if p.grows then growing = growing + 1 end
  notes = notes or p.notes
end
--@ end

-- the time, and the value
now, pos = unpack('<d', request, pos)
local timeGiven = now >= 0
if not timeGiven then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
--@ if holding
--@ readHead
local opens, ahead = false, false -- whether holds are open, and whether turns are ahead
--@ end
--@ if not holding
local value = call('GET', KEYS[1]) or ''
--@ end
local prefix -- the length of that of the value; 0 of a short form
if value ~= '' then
  if sub(value, 1, #tag) == tag then
    prefix = #tag
  else
    --@ if not all
    local s, code, short = value, p.code
    --@ short
    if short then prefix = 0 end
    --@ end
    for i = 3, #ARGV do
      if sub(value, 1, #ARGV[i]) == ARGV[i] then prefix = #ARGV[i] end
    end
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
  if not prefix then
    return pack('<dB', now, 1) .. value
  end
  value = sub(value, prefix + 1)
end
--@ if holding
--@ aheadList
--@ openList
--@ end

-- the states
local fits = true
--@ if all
--@ readParts
--@ end
--@ if not all
if value ~= '' and prefix > 0 then
  fits = #value == (p.width or #value - #value % 8)
end
p.s = value
--@ end
if not fits then
  return pack('<dB', now, 1) .. call('GET', KEYS[1])
end
for j = 1, many do P[j].load(P[j].s) end

-- the requests
local granted, changed = 0, false
local whole = false -- whether the reply has the whole value
--@ if holding
--@ endDue
--@ aheadDue
--@ end
while true do
  --@ if holding
  --@ spendPending
  --@ end
  if pos > #request then break end
  local times, n, wait
  op, times, n, wait, pos = unpack('<BI4dd', request, pos)
  for j = 1, many do
    if P[j].priced then P[j].cost() end
  end
  --@ if holding
  --@ upTo
  --@ readHold
  --@ end
  --@ if longer holding
  --@ account
  --@ end
  --@ if holding
  --@ settle
  --@ end
  for _ = 1, times do
    local at = now -- when the events are granted and spent
    --@ if holding
    if op == 2 then
      whole = true
      --@ reserve
    else
    --@ end
      for j = 1, many do
        local when = P[j].ready(now, n)
        if when > at then at = when end
      end
    --@ if holding
      if turns ~= '' and at <= now then at = now + 1 end
    end
    --@ end
    if op == 2 or op == 1 and at <= now then
      local t = at
      --@ if holding
      --@ opensHold
      --@ end
      for j = 1, many do P[j].spend(t, n) end
      --@ if holding
      --@ opened
      granted = granted + more
      --@ end
      granted, changed = granted + 1, true
    elseif op == 1 and notes then
      --@ if not holding
      local held = 0
      --@ end
      --@ if holding
      local t = now
      asks = true
      if turns ~= '' then
        --@ leave
      end
      --@ heldEvents
      if id == 0 then
        --@ passYoungest
      end
      --@ end
      for j = 1, many do
        if P[j].notes then P[j].refuse(n, held) end
      end
      changed = true
    else
      --@ if holding
      asks = true
      if (ended or opening) and op == 1 and id == 0 then
        local t = now
        --@ passYoungest
      end
      --@ end
      break -- the next equal request will not be granted either
    end
  end
end

-- the answer
--@ if calendar
if undecided then
  --@ leave
end
--@ end
local outcome = 0
--@ if holding
--@ tellBack
--@ end
if value ~= '' and not whole then
  --@ if all
  --@ tellParts
  --@ end
  --@ if not all
  if growing > 0 then value = p.view(value) end
  --@ end
end
--@ if holding
--@ tellHolds
if ahead then outcome, value = 6, listed end
changed = changed or (ended or came) and stores
if changed then granted = granted + 65536 * over end
--@ end

-- the next state
if changed then
  local fresh, state = now
  --@ if all
  --@ writeParts
  --@ end
  --@ if not all
  local mayShorten = opens == 0 and turns == ''
  --@ writePart
  --@ end
  --@ if holding
  --@ writeHolds
  --@ writeAhead
  --@ end
  local ttl = fresh - now
  if ttl > LAST then ttl = LAST end
  ttl = (ttl - ttl % 1000) / 1000 + 1 -- in milliseconds: rounded up, or one more
  if timeGiven then ttl = ttl + 3600000 end -- an hour more, because the given time is not this server's
  --@ if not holding
  call('PSETEX', KEYS[1], format('%d', ttl), state) -- format is faster than Redis
  --@ end
  --@ if holding
  if ahead and turns ~= '' then ttl = max(ttl, call('PTTL', KEYS[1])) end -- of the turns that were there
  if state then
    call('PSETEX', KEYS[1], format('%d', ttl), state)
  elseif fresh > wereLast then -- otherwise it is kept as long already
    call('PEXPIRE', KEYS[1], format('%d', ttl))
  end
  --@ end
end
return pack('<dBdc0', now, outcome, granted, value)
