-- The script decides a list of requests on one key, in order and at one time, and spends the events
-- that it grants. It returns the state from before and the time. From these the caller computes the
-- Decisions with the arithmetic of package ratelimit, so the script contains only the arithmetic
-- that decides and spends.
--
-- KEYS[1]  the key
-- ARGV[1]  if the algorithm is an All, the number of its parts; for each part its kind and its
--          constants; the time, or a negative number for the time of this server; then for each run of
--          equal requests: the operation (see call.go), the number of requests, the events of each, the
--          longest wait, and for each bucket the cost of the events
-- ARGV[2]  the prefix of each state, which names the limit that left it
-- ARGV[3]  and so on: the prefixes of states that other limits left, if these differ from this one only
--          in how much they grant
--
-- The reply is the time, 0, the number of takes and reservations granted, and the state. If the
-- value is not a state of any of these limits, nothing is changed, and the reply is the time, 1 and
-- the value; see foreign.go. If holds are open or turns are ahead, nothing is changed, and the
-- reply is the time and 4: the caller asks main.lua then.
--
-- Numbers are doubles, which represent integers up to 2^53 exactly. Instants are whole microseconds
-- since 1970, up to the year 2116 (below 2^52.1). Windows, limits and the units of a microsecond in
-- which buckets count are at most 2^51, so the sum of an instant and two of these is exact. For
-- integers below 2^53, floor(a / b) and a % b are exact as well. Larger products have two halves,
-- in wide.lua.
--
-- This file is the script for an algorithm of one part, unless holds are open. main.lua is that for
-- all others, and joint.lua that for several keys. Redis runs a script from its first line on each
-- call, and creating a function or a table takes as long as all the arithmetic. So here are
-- neither: the code of the kernel is inserted, and its state is in local variables. The other two
-- make functions of the same code, in part.lua.
--
-- script.go joins the files. "--# name" begins a block, and "--# name +" what is added to that of
-- another file. "--@ name" inserts the block of that name,
-- and the lines between "--@ if" and "--@ end" are in the scripts that have one of the things
-- named: the kernel bucket (TokenBucket), queue (LeakyBucket), interval, fixed, calendar, sliding,
-- rolling, log, warming, flight or lockout; or all (an All), longer (the script knows operation 4,
-- charge) or holding (it knows holds and turns). "--@ if not" begins those for the others. "--@ kind"
-- sets kind to the number of the kernel. A block may insert blocks of its own kernel. A kernel has
-- the blocks
--
--   opening    reads the constants, the time and the first run of requests at once, because each call
--              of unpack takes time (here only; the constants begin behind the kind)
--   constants  reads the constants, from pos in request (in part.lua only)
--   traits     says of the part p what others must know (in part.lua only)
--   state      declares the variables of the state
--   fits       sets fits to whether s, which is not empty, has the length of a state
--   load       reads the state s
--   ready      sets when to the first instant from t on at which n events are granted
--   spend      spends n events at t
--   fresh      sets when to the instant from which the state equals that of a new key
--   dump       sets s to the state
--
-- and some have
--
--   short      sets short to whether s is in the short form of this limit's states (in parts.lua)
--   shorten    sets state to the short form of the state, if it has one
--   cost       reads the cost of the events, from pos in request
--   delay      sets when to the time for which events granted at t are delayed (of a queue)
--   refuse     records that n events were denied now, while held events are held
--   view       removes from s, the state that was loaded, if it is long, what did not affect the
--              decisions
--
-- For charges:
--
--   beyond     sets t to the first instant, from now on, at which events beyond the limit are spent
--   room       sets room to whether the state can hold n more events at t, and sees to it that the
--              reply has all of the state that matters
--   charge     spends n events at t
--
-- They are the counterparts of chargeable and Spend in package kernel. part.lua says which blocks
-- there are for holds. A name that a kernel uses for its constants and state must not be one of
-- this file.

local call, unpack, pack = redis.call, struct.unpack, struct.pack
local sub, format = string.sub, string.format
--@ if log flight
local byte = string.byte
--@ end
--@ if longer
local floor, max, min = math.floor, math.max, math.min
local COUNTS = 2251799813685248 -- 2^51, the greatest count in a state
--@ end
local LAST = 4611686018427387 -- the latest microsecond that events may be granted at

local request, tag = ARGV[1], ARGV[2]
--@ opening
--@ state
--@ if calendar
local undecided = false -- whether the kernel leaves the decision to the process
--@ end

local timeGiven = now >= 0
if not timeGiven then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- the value, and the state in it
local value = call('GET', KEYS[1]) or ''
local s = value
if value ~= '' then
  local prefix = sub(value, 1, #tag) == tag and #tag
  --@ if bucket queue
  local short
  if not prefix then
    --@ short
    if short then prefix = 0 end
  end
  --@ end
  if not prefix then
    for i = 3, #ARGV do
      if sub(value, 1, #ARGV[i]) == ARGV[i] then prefix = #ARGV[i] end
    end
    if not prefix then
      if sub(value, 2, #tag) == sub(tag, 2) then
        return pack('<dB', now, 4) -- the first byte says that holds are open or turns ahead
      end
      return pack('<dB', now, 1) .. value
    end
  end
  s = sub(value, prefix + 1)
  if s ~= '' and prefix > 0 then
    local fits
    --@ fits
    if not fits then return pack('<dB', now, 1) .. value end
  end
  value = s
end
--@ load

-- the requests
local granted, changed = 0, false
while op or pos <= #request do
  if not op then
    op, times, n, wait, pos = unpack('<BI4dd', request, pos)
    --@ cost
  end
  --@ if longer
  if op == 4 then
    for _ = 1, times do
      local t, room
      --@ beyond
      --@ room
      if not room then break end
      do
        --@ charge
      end
      changed = true
    end
    times = 0
  end
  --@ end
  for _ = 1, times do
    local t, when = now
    --@ ready
    if op == 1 and when <= now then
      --@ spend
      granted, changed = granted + 1, true
    --@ if log
    elseif op == 1 and counted == 1 then
      local held = 0 -- by holds
      --@ refuse
      changed = true
    --@ end
    else
      break -- the next equal request will not be granted either
    end
  end
  op = nil
end

-- the answer, and the next state
--@ if calendar
if undecided then return pack('<dB', now, 1) .. (call('GET', KEYS[1]) or '') end
--@ end
--@ if log flight
if value ~= '' then
  --@ view
  value = s
end
--@ end
if changed then
  local when
  --@ fresh
  local ttl = when - now
  if ttl < 0 then ttl = 0 end
  if ttl > LAST then ttl = LAST end
  ttl = (ttl - ttl % 1000) / 1000 + 1 -- in milliseconds: rounded up, or one more
  if timeGiven then ttl = ttl + 3600000 end -- an hour more, because the given time is not this server's
  local state
  --@ shorten
  if not state then
    --@ dump
    state = tag .. s
  end
  call('PSETEX', KEYS[1], format('%d', ttl), state) -- format is faster than Redis
end
return pack('<dBdc0', now, 0, granted, value)
