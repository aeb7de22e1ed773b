-- The script decides a list of requests on one key, in order and at one time, and spends
-- the events that it grants. It returns the state from before and the time. From these the
-- caller computes the Decisions with the arithmetic of package ratelimit, so the script
-- contains only the arithmetic that decides and spends.
--
-- KEYS[1]  the key
-- ARGV[1]  if the algorithm is an All, the number of its parts; for each part its kind and
--          its constants; the time, or a negative number for the time of this server; then
--          for each run of equal requests: the operation, the number of requests, the
--          events of each, the longest wait, and for each bucket the cost of the events
-- ARGV[2]  the prefix of each state, which names the limit that left it
-- ARGV[3]  and so on: the prefixes of states that other limits left, if these differ from this one
--          only in how much they grant
--
-- In the script for holds and turns (holds.lua and ahead.lua, after --@@holding; the lines after
-- --@@closed are for the others), the costs of one event in each bucket follow on the time, and of a request about a hold its ID, how
-- long it lasts (op 2, 3 and 6; see call.go) or how many events it has (op 5), and a byte of flags.
--
-- The reply is the time, 0, the number of takes and reservations granted, and the state. If the
-- value is not a state of any of these limits, or the process is to decide, nothing is changed, and the
-- reply is the time, 1 and the value; see foreign.go. If holds are open, the script for holds replies
-- with 5 instead of 0 or, if turns are ahead, with 6 and the value without its prefix; the others reply
-- with the time and 4, and change nothing.
-- The script for holds adds 65536 for each hold that has ended without a request to the number of
-- requests granted.
--
-- Numbers are doubles, which represent integers up to 2^53 exactly. Instants are whole
-- microseconds since 1970, up to the year 2116 (below 2^52.1). Windows, limits and the units
-- of a microsecond in which buckets count are at most 2^51, so the sum of an instant and
-- two of these is exact. For integers below 2^53, floor(a / b) and a % b are exact as well.
-- Larger products have two halves, in wide.lua.
--
-- This file is a template. Redis runs a script from its first line on each call, and
-- creating a function or a table takes as long as all the arithmetic. The lines after
-- --@@several are for an All, those after --@@one for any other algorithm, and those after --@@always
-- for all. --@<each becomes a loop over the parts p; with one part, there is no loop, and each
-- p.field is a local variable. library, readParts, tellParts, writeParts and writePart are in
-- parts.lua.
-- Any other --@< inserts the sections of that name from the kernels, as branches on p.kind if
-- they differ. A kernel's sections insert others of the same kernel instead of calling functions,
-- which the script would create on each call. The sections that the scripts insert are:
--
--   open    reads the constants, from pos in request, in its first statement. opening is
--           open, except that this statement reads the time and the first run of requests
--           as well, because each call of unpack takes time. It is not used for an All.
--   short   sets from to 0 if the value s is in a short form of this limit's states (not of an All)
--   load    reads the state s
--   ready   sets when to the first instant from t on at which n events are granted
--   hold    sets when to the time for which events granted at t are held (if p.queue)
--   spend   spends n events at t
--   refuse  records that n events were denied at t (if p.notes)
--   fresh   sets when to the instant from which the state equals that of a new key
--   dump    sets s to the state
--   shorten sets state to the short form of the state, if it has one (not of an All)
--   view    removes from the state that was loaded, if it is long, what did not affect the
--           decisions, and sets s to the rest (if p.grows)
--
-- Requests that count events whatever the limit says need a longer script: --@<account inserts
-- account.lua, if there are any.

--@<library
--@<fields

local request, tag = ARGV[1], ARGV[2]

-- the parts
local now, op, times, n, wait, pos
--@@one closed
--@<opening
--@@one holding
p.kind, pos = unpack('<B', request)
--@<open
--@@one
local notes, growing = p.notes, p.grows
--@@several
--@@several holding
local all = 1
--@@several
local many
many, pos = unpack('<I2', request)
local P, growing, notes = {}, 0, false
for j = 1, many do
  --@<table
  p.kind, pos = unpack('<B', request, pos)
  --@<open
  P[j] = p
  if p.grows then growing = growing + 1 end
  notes = notes or p.notes
end
--@@several
now, pos = unpack('<d', request, pos)
--@@holding one
now, pos = unpack('<d', request, pos)
--@@always

-- the time, and the value
local timeGiven = now >= 0
if not timeGiven then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
--@@closed
local value = call('GET', KEYS[1]) or ''
--@@holding
--@<readHead
--@@always
--@@holding
local opens, ahead = false, false -- whether holds are open, and whether turns are ahead
--@@always
local from -- the length of the prefix of the value; 0 of a short form
if value ~= '' then
  if sub(value, 1, #tag) == tag then
    from = #tag
  else
    --@@one
    local s = value
    --@<short
    --@@always
    for i = 3, #ARGV do
      if sub(value, 1, #ARGV[i]) == ARGV[i] then from = #ARGV[i] end
    end
  end
  --@@closed
  if not from and sub(value, 2, #tag) == sub(tag, 2) then
    return pack('<dB', now, 4)
  end
  --@@holding
  if not from and sub(value, 2, #tag) == sub(tag, 2) then
    opens, ahead = byte(value) == 2, byte(value) == 3
    if opens or ahead then from = #tag end
  end
  --@@always
  if not from then
    return pack('<dB', now, 1) .. value
  end
  value = sub(value, from + 1)
end
--@@holding
--@<aheadList
--@<openList
--@@always

-- the states
local fits = true
--@@one
local s = value
if s ~= '' and from > 0 then
  fits = #s == (p.width or #s - #s % 8)
end
--@@several
--@<readParts
--@@always
if not fits then
  return pack('<dB', now, 1) .. call('GET', KEYS[1])
end
--@<each
  --@@several
  local s = p.s
  --@@always
  --@<load
end
local granted, changed = 0, false
--@@holding
local whole = false -- whether the reply has the whole value
--@<endDue
--@<aheadDue
--@@account
local COUNTS = 2251799813685248 -- 2^51, the greatest count in a state
--@@always
--@@closed
while op or pos <= #request do
--@@holding
while true do
  --@<spendPending
  if pos > #request then break end
--@@always
  if not op then
    op, times, n, wait, pos = unpack('<BI4dd', request, pos)
    --@<each
      if p.unit then
        p.costTicks, p.costUnits, pos = unpack('<dd', request, pos)
      end
    end
  end
  --@@holding
  --@<readHold
  --@@always
  --@<account
  --@@holding
  --@<settle
  --@@always
  for _ = 1, times do
    local t = now
    local at = now -- when the events are granted and spent
    --@@holding
    if op < 2 then
    --@@always
      --@<each
        local when
        --@<ready
        if when > at then at = when end
      end
    --@@holding
      if turns ~= '' and at <= now then at = now + 1 end
    else -- reserve: a queue must have room at the time when the other parts grant
      whole = true
      local function ready(t, n, queues)
        local at = t
        --@<each
          if queues == nil or queues == (p.queue or false) then
            local when
            --@<ready
            if when > at then at = when end
          end
        end
        return at
      end
      local from = now
      if turns ~= '' then from = unpack('<I8', turns, #turns - 23) end -- nothing is granted before the last turn
      local others = ready(from, n, false)
      local full = others <= LAST and ready(others, n, true) > others
      at = ready(from, n)
      local due = at
      --@<each
        if p.queue then
          local t, when = at
          --@<hold
          if at + when > due then due = at + when end
        end
      end
      if full or at > LAST or due - now > wait or yields and at > now then
        op = 0
      elseif turns ~= '' or id > 0 and at > now then
        op = 0
        --@<reserveTurn
      elseif due <= now then
        op = 1
        if lasts == 0 then id = 0 end -- it is over
      end
    end
    --@@always
    if op == 2 or op == 1 and at <= now then
      t = at
      --@@holding
      --@<opensHold
      --@@always
      --@<each
        --@<spend
      end
      --@@holding
      --@<opened
      --@@always
      granted, changed = granted + 1, true
    elseif op == 1 and notes then
      --@@holding
      asks = true
      if turns ~= '' then
        --@<other
      end
      --@<heldEvents
      if id == 0 then
        --@<passYoungest
      end
      --@@always
      --@<each
        if p.notes then
          --@<refuse
        end
      end
      changed = true
    else
      --@@holding
      asks = true
      if (ended or opening) and op == 1 and id == 0 then
        --@<passYoungest
      end
      --@@always
      break -- the next equal request will not be granted either
    end
  end
  op = nil
end

-- the answer
--@@closed
if value ~= '' then
--@@holding
--@<tellBack
if value ~= '' and not whole then
--@@always
  --@@one
  if p.grows then
    --@<view
    value = s
  end
  --@@several
  --@<tellParts
  --@@always
end
--@@holding
--@<tellHolds
if ahead then outcome, value = 6, listed end
changed = changed or (ended or came) and stores
if changed then granted = granted + 65536 * over end
--@@always
if changed then
  local fresh, state = now
  --@@holding one
  if opens > 0 or turns ~= '' then p.code = -1 end -- no short form
  --@@one
  --@<each
    --@<writePart
  end
  --@@several
  --@<writeParts
  --@@holding
  --@<writeHolds
  --@<writeAhead
  --@@always
  local ttl = fresh - now
  if ttl > LAST then ttl = LAST end
  ttl = (ttl - ttl % 1000) / 1000 + 1 -- in milliseconds: rounded up, or one more
  if timeGiven then ttl = ttl + 3600000 end -- an hour more, because the given time is not this server's
  --@@closed
  call('PSETEX', KEYS[1], format('%d', ttl), state) -- format is faster than Redis
  --@@holding
  if ahead and turns ~= '' then ttl = max(ttl, call('PTTL', KEYS[1])) end -- of the turns that were there
  if state then
    call('PSETEX', KEYS[1], format('%d', ttl), state)
  elseif fresh > wereLast then -- otherwise it is kept as long already
    call('PEXPIRE', KEYS[1], format('%d', ttl))
  end
  --@@always
end
--@@holding
return pack('<dBdc0', now, outcome, granted, value)
--@@closed
return pack('<dBdc0', now, 0, granted, value)
