-- One call decides a list of requests on one key, in order, at one time, and
-- spends what it grants. It answers with the state that was there before and the
-- time: from these the caller computes what it tells, with the arithmetic of
-- package ratelimit. So only what decides and spends is written here.
--
-- KEYS[1]  the key
-- ARGV[1]  if the algorithm is an All, how many parts it has; for each part its kind
--          and its constants; the time, or a negative number for that of this server;
--          then for each run of equal requests: what is asked, how many times, how
--          many events, the longest wait, and for each bucket what the events cost
-- ARGV[2]  what states begin with, if keys have limits of their own
--
-- Answer: the time, 0 and how many requests were granted, and the state; or the
-- time and 1, if the value is no state of this limit: then nothing was done.
--
-- Numbers are doubles, which hold whole numbers up to 2^53. Instants are whole
-- microseconds since 1970 and end in 2116 (below 2^52.1); windows, limits and the
-- units of a microsecond in which buckets count are at most 2^51, so that a sum
-- of an instant and two of these is still exact. Of whole numbers below 2^53,
-- floor(a / b) and a % b are exact, too. Products that may be larger are compared
-- in two halves, in sliding.lua.
--
-- This is a template: Redis runs a script from its first line for each call, and to
-- make a function or a table takes it as long as all the arithmetic. What follows
-- --@@several is for an All, what follows --@@one for any other algorithm, and after
-- --@@both it is for both. There is a loop over the parts p where it says --@<each;
-- if there is one part, there is none, and each p.field is a local variable. The
-- sections of the kernels are put in where it says --@< and their name, as a branch
-- on p.kind if there are several:
--
--   help    functions that the others use
--   open    reads the constants, from pos in request
--   load    reads the state s
--   ready   sets when to the first instant from t on at which n events are granted
--   hold    sets when to how long events granted at t are to be held (p.queue)
--   spend   takes n events at t
--   refuse  notes that n events were refused at t (p.notes)
--   fresh   sets when to the instant at which the state equals an empty one
--   dump    sets s to the state
--   view    sets s to the state that was loaded, as far as it matters (p.grows)

local call = redis.call
local spread = unpack
local unpack = struct.unpack
local pack = struct.pack
local sub = string.sub
local floor = math.floor
local ceil = math.ceil
local max = math.max
local min = math.min
local LAST = 4611686018427387 -- the last microsecond that a reservation may be for
--@<fields
--@<help

local request, tag = ARGV[1], ARGV[2] or ''

-- the parts
--@@one
local pos
p.kind, pos = unpack('<B', request)
--@<open
local notes, growing = p.notes, p.grows
--@@several
local many, pos = unpack('<I2', request)
local P, growing, notes = {}, 0, false
for j = 1, many do
  --@<table
  p.kind, pos = unpack('<B', request, pos)
  --@<open
  P[j] = p
  if p.grows then growing = growing + 1 end
  notes = notes or p.notes
end
--@@both

-- the time, and the value
local now
now, pos = unpack('<d', request, pos)
local told = now >= 0
if not told then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local value = call('GET', KEYS[1]) or ''
if tag ~= '' and value ~= '' then
  if sub(value, 1, #tag) ~= tag then
    return pack('<dB', now, 1)
  end
  value = sub(value, #tag + 1)
end

-- the states: of an All, the lengths of those that grow, the others, those that grow
local fits = true
--@@one
local s = value
if s ~= '' then fits = #s == (p.width or #s - #s % 8) end
--@@several
if value == '' then
  for j = 1, many do P[j].s = '' end
else
  local from, grown = 1 + 8 * growing, 0
  fits = #value >= from - 1
  --@<each
    if not p.grows then
      p.s = sub(value, from, from + p.width - 1)
      from = from + p.width
    end
  end
  --@<each
    if p.grows and fits then
      local words = unpack('<I8', value, 8 * grown + 1)
      p.s = sub(value, from, from + 8 * words - 1)
      from, grown = from + 8 * words, grown + 1
    end
  end
  fits = fits and from == #value + 1
end
--@@both
if not fits then
  return pack('<dB', now, 1)
end
--@<each
  --@@several
  local s = p.s
  --@@both
  --@<load
end

local granted, changed, whole = 0, false, false
while pos <= #request do
  local op, times, n, wait
  op, times, n, wait, pos = unpack('<BI4dd', request, pos)
  --@<each
    if p.unit then
      p.costTicks, p.costUnits, pos = unpack('<dd', request, pos)
    end
  end
  for _ = 1, times do
    local t = now
    local at = now -- when the events are granted, and spent
    if op < 2 then -- peek, whose answer is to tell that as well, or take
      --@<each
        local when
        --@<ready
        if when > at then at = when end
      end
    else -- reserve: a queue must have room when the others grant
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
      local others = ready(now, n, false)
      local full = others <= LAST and ready(others, n, true) > others
      at = ready(now, n)
      local due = at
      --@<each
        if p.queue then
          local t, when = at
          --@<hold
          if at + when > due then due = at + when end
        end
      end
      if full or at > LAST or due - now > wait then op = 0 end
    end
    if op == 2 or op == 1 and at <= now then
      t = at
      --@<each
        --@<spend
      end
      granted, changed = granted + 1, true
    elseif op == 1 and notes then
      --@<each
        if p.notes then
          --@<refuse
        end
      end
      changed = true
    else
      break -- nor will the next equal one be granted
    end
  end
end

-- the answer
if value ~= '' and not whole then
  --@@one
  if p.grows then
    --@<view
    value = s
  end
  --@@several
  if growing > 0 then
    local lengths, fixed, states = '', '', ''
    --@<each
      local s = p.s
      if p.grows then
        --@<view
        lengths, states = lengths .. pack('<I8', #s / 8), states .. s
      else
        fixed = fixed .. s
      end
    end
    value = lengths .. fixed .. states
  end
  --@@both
end
if changed then
  local fresh, state = now
  --@@several
  local lengths, fixed, states = '', '', ''
  --@@both
  --@<each
    local when, s
    --@<fresh
    --@<dump
    if when > fresh then fresh = when end
    --@@one
    state = s
    --@@several
    if p.grows then
      lengths, states = lengths .. pack('<I8', #s / 8), states .. s
    else
      fixed = fixed .. s
    end
    --@@both
  end
  --@@several
  state = lengths .. fixed .. states
  --@@both
  if tag ~= '' then state = tag .. state end
  local ttl = fresh - now -- in milliseconds, rounded up, or one more
  ttl = (ttl - ttl % 1000) / 1000 + 1
  if ttl > LAST then ttl = LAST end
  if told then ttl = ttl + 3600000 end -- the time that was told is not this server's
  call('PSETEX', KEYS[1], ttl, state)
end
return pack('<dBdc0', now, 0, granted, value)
