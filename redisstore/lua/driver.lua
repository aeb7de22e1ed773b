-- One call decides a list of requests on one key, in order, at one time, and
-- spends what it grants. It answers with the state that was there before and the
-- time: from these the caller computes what it tells, with the arithmetic of
-- package ratelimit. So only what decides and spends is written here.
--
-- KEYS[1]  the key
-- ARGV[1]  1 if the algorithm is an All, else 0; for each part its kind and constants
-- ARGV[2]  the time, or a negative number for that of this server; then for each
--          run of equal requests: what is asked, how many times, how many events,
--          the longest wait, and for each bucket what the events cost
-- ARGV[3]  what states begin with if keys have limits of their own, else empty
--
-- Answer: the time, 0 and how many requests were granted, and the state; or the
-- time, 1 and the whole value, if another limit left it: then nothing was done.
--
-- Numbers are doubles, which hold whole numbers up to 2^53. Instants are whole
-- microseconds since 1970 and end in 2116 (below 2^52.1); windows, limits and the
-- units of a microsecond in which buckets count are at most 2^51, so that a sum
-- of an instant and two of these is still exact. Of whole numbers below 2^53,
-- floor(a / b) and a % b are exact, too. Products that may be larger are compared
-- in two halves, in sliding.lua.
--
-- The kernels are put in where a line says --@@. That is a branch on p.kind if the
-- algorithm has parts of several kinds, and nothing but the code itself if not: to
-- make functions for each call would take longer than all the rest. Each has
--
--   help    functions that the others use
--   open    makes the part p of its constants, from at in params
--   load    reads its state s
--   ready   sets when to the first instant from t on at which n events are granted
--   hold    sets when to how long events granted at t are to be held (a queue's)
--   spend   takes n events at t
--   refuse  notes that n events were refused at t (if p.notes)
--   fresh   sets when to the instant at which the state equals an empty one
--   dump    sets s to its state
--   view    sets s to the state that was loaded, as far as it matters (if p.grows)

local unpack, pack, sub, call = struct.unpack, struct.pack, string.sub, redis.call
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local LAST = 4611686018427387 -- the last microsecond that a reservation may be for
--@@help

-- the time, and the value
local params, request, tag = ARGV[1], ARGV[2], ARGV[3]
local now, pos = unpack('<d', request)
local told = now >= 0
if not told then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local value = call('GET', KEYS[1]) or ''
if tag ~= '' and value ~= '' then
  if sub(value, 1, #tag) ~= tag then
    return pack('<dB', now, 1) .. value
  end
  value = sub(value, #tag + 1)
end

-- the parts
local P, many, growing, notes = {}, 0, 0, false
local all, at = unpack('<B', params)
while at <= #params do
  local kind, p
  kind, at = unpack('<B', params, at)
  --@@open
  p.kind = kind
  many = many + 1
  P[many] = p
  if p.grows then growing = growing + 1 end
  notes = notes or p.notes
end

-- their states: of an All, the lengths of those that grow, the others, those that grow
local fits = true
if all == 0 then
  P[1].s = value
  fits = value == '' or #value == (P[1].width or #value - #value % 8)
elseif value == '' then
  for j = 1, many do P[j].s = '' end
else
  local from, grown = 1 + 8 * growing, 0
  fits = #value >= from - 1
  for j = 1, many do
    local p = P[j]
    if not p.grows then
      p.s = sub(value, from, from + p.width - 1)
      from = from + p.width
    end
  end
  for j = 1, many do
    local p = P[j]
    if p.grows and fits then
      local words = unpack('<I8', value, 8 * grown + 1)
      p.s = sub(value, from, from + 8 * words - 1)
      from, grown = from + 8 * words, grown + 1
    end
  end
  fits = fits and from == #value + 1
end
if not fits then
  return redis.error_reply('ERR ratelimit: the value of ' .. KEYS[1] .. ' is not a state of this limit')
end
for j = 1, many do
  local p = P[j]
  local s = p.s
  --@@load
end

-- the first instant from t on at which the parts grant n events: those that are
-- queues, those that are not, or all of them
local function ready(t, n, queues)
  local at = t
  for j = 1, many do
    local p = P[j]
    if queues == nil or queues == (p.queue or false) then
      local when
      --@@ready
      if when > at then at = when end
    end
  end
  return at
end

local granted, changed, whole = 0, false, false
while pos <= #request do
  local op, times, n, wait
  op, times, n, wait, pos = unpack('<BI4dd', request, pos)
  for j = 1, many do
    local p = P[j]
    if p.unit then
      p.costTicks, p.costUnits, pos = unpack('<dd', request, pos)
    end
  end
  for _ = 1, times do
    local t -- when the events are spent
    if op == 0 then -- peek: the answer is to tell when one event is granted
      ready(now, n)
    elseif op == 1 then -- take
      if ready(now, n) <= now then t = now end
    else -- reserve: a queue must have room when the others grant
      whole = true
      local at = ready(now, n, false)
      if at > LAST or ready(at, n, true) <= at then
        at = ready(now, n)
        if at <= LAST then
          local due = at
          for j = 1, many do
            local p = P[j]
            if p.queue then
              local t, when = at
              --@@hold
              due = max(due, at + when)
            end
          end
          if due - now <= wait then t = at end
        end
      end
    end
    if t then
      for j = 1, many do
        local p = P[j]
        --@@spend
      end
      granted, changed = granted + 1, true
    elseif op == 1 and notes then
      local t = now
      for j = 1, many do
        local p = P[j]
        if p.notes then
          --@@refuse
        end
      end
      changed = true
    else
      break -- nor will the next equal one be granted
    end
  end
end

-- the answer
if growing > 0 and value ~= '' and not whole then
  local lengths, fixed, states = '', '', ''
  for j = 1, many do
    local p = P[j]
    local s = p.s
    if p.grows then
      --@@view
      lengths, states = lengths .. pack('<I8', #s / 8), states .. s
    else
      fixed = fixed .. s
    end
  end
  if all == 0 then value = states else value = lengths .. fixed .. states end
end
if changed then
  local fresh = now
  local lengths, fixed, states = '', '', ''
  for j = 1, many do
    local p = P[j]
    local when, s
    --@@fresh
    --@@dump
    if when > fresh then fresh = when end
    if p.grows then
      lengths, states = lengths .. pack('<I8', #s / 8), states .. s
    else
      fixed = fixed .. s
    end
  end
  if all == 0 then lengths = '' end
  local ttl = max(1, min(ceil((fresh - now) / 1000), 2251799813685248))
  if told then ttl = ttl + 3600000 end -- the time that was told is not this server's
  call('SET', KEYS[1], tag .. lengths .. fixed .. states, 'PX', ttl)
end
return pack('<dBd', now, 0, granted) .. value
