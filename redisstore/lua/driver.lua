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

local K = {} -- the kernels, by kind
local P = {} -- the parts: the constants and the state of each
local LAST = 4611686018427387 -- the last microsecond that a reservation may be for

local unpack, pack, sub = struct.unpack, struct.pack, string.sub
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

--KERNELS--

-- the time, and the state
local request, tag = ARGV[2], ARGV[3]
local now, pos = unpack('<d', request)
local told = now >= 0
if not told then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local value = redis.call('GET', KEYS[1]) or ''
if tag ~= '' and value ~= '' then
  if sub(value, 1, #tag) ~= tag then
    return pack('<dB', now, 1) .. value
  end
  value = sub(value, #tag + 1)
end

-- the parts
local params = ARGV[1]
local all, at = unpack('<B', params)
local many, costs = 0, {} -- the parts, and those of them that ask for the cost of events
local growing = {}        -- those whose states grow with use
local notes, whole = false, false
while at <= #params do
  local kind
  kind, at = unpack('<B', params, at)
  local p = {kernel = K[kind]}
  at = p.kernel.open(p, params, at)
  many = many + 1
  P[many] = p
  if p.kernel.cost then costs[#costs + 1] = p end
  if p.kernel.view then growing[#growing + 1] = p end
  notes = notes or p.notes
end
local function damaged()
  return redis.error_reply('ERR ratelimit: the value of ' .. KEYS[1] .. ' is not a state of this limit')
end
if all == 0 then
  local width = P[1].width or #value - #value % 8
  if value ~= '' and #value ~= width then return damaged() end
  P[1].kernel.load(P[1], value)
elseif value == '' then
  for j = 1, many do P[j].kernel.load(P[j], '') end
else
  -- the lengths of those that grow, the others, those that grow
  local from = 1 + 8 * #growing
  if #value < from - 1 then return damaged() end
  for j = 1, many do
    local p = P[j]
    if not p.kernel.view then
      p.kernel.load(p, sub(value, from, from + p.width - 1))
      from = from + p.width
    end
  end
  for j = 1, #growing do
    local words = unpack('<I8', value, 8 * j - 7)
    growing[j].kernel.load(growing[j], sub(value, from, from + 8 * words - 1))
    from = from + 8 * words
  end
  if from ~= #value + 1 then return damaged() end
end

local function ready(n)
  local at = now
  for j = 1, many do
    at = max(at, P[j].kernel.ready(P[j], now, n))
  end
  return at
end

local function spend(at, n)
  for j = 1, many do
    P[j].kernel.spend(P[j], at, n)
  end
end

-- when n events may be reserved, unless a queue has no room or it takes too long
local function turn(n, wait)
  local at = now
  for j = 1, many do
    if not P[j].kernel.hold then at = max(at, P[j].kernel.ready(P[j], now, n)) end
  end
  for j = 1, many do
    local p = P[j]
    if p.kernel.hold and at <= LAST and p.kernel.ready(p, at, n) > at then return end
  end
  at = ready(n)
  if at > LAST then return end
  local due = at
  for j = 1, many do
    if P[j].kernel.hold then due = max(due, at + P[j].kernel.hold(P[j], at)) end
  end
  if due - now <= wait then return at end
end

local granted, changed = 0, false
while pos <= #request do
  local op, times, n, wait
  op, times, n, wait, pos = unpack('<BI4dd', request, pos)
  for j = 1, #costs do
    costs[j].costTicks, costs[j].costUnits, pos = unpack('<dd', request, pos)
  end
  for _ = 1, times do
    if op == 0 then -- peek
      ready(n)
      break
    elseif op == 1 then -- take
      if ready(n) <= now then
        spend(now, n)
        granted, changed = granted + 1, true
      elseif notes then
        for j = 1, many do
          if P[j].notes then P[j].kernel.refuse(P[j], now, n) end
        end
        changed = true
      else
        break -- nor will the next equal one be granted
      end
    else -- reserve
      whole = true
      local at = turn(n, wait)
      if not at then break end
      spend(at, n)
      granted, changed = granted + 1, true
    end
  end
end

-- the answer
local before = value
if value ~= '' and #growing > 0 and not whole then
  if all == 0 then
    before = P[1].kernel.view(P[1], now)
  else
    local lengths, states = {}, {}
    local fixed = 8 * #growing + 1
    local to = fixed
    for j = 1, many do
      if not P[j].kernel.view then to = to + P[j].width end
    end
    for j = 1, #growing do
      states[j] = growing[j].kernel.view(growing[j], now)
      lengths[j] = pack('<I8', #states[j] / 8)
    end
    before = table.concat(lengths) .. sub(value, fixed, to - 1) .. table.concat(states)
  end
end

if changed then
  local fresh = now
  for j = 1, many do
    fresh = max(fresh, P[j].kernel.fresh(P[j]))
  end
  if all == 0 then
    value = P[1].kernel.dump(P[1])
  else
    local lengths, fixed, states = {}, {}, {}
    for j = 1, many do
      local s = P[j].kernel.dump(P[j])
      if P[j].kernel.view then
        lengths[#lengths + 1] = pack('<I8', #s / 8)
        states[#states + 1] = s
      else
        fixed[#fixed + 1] = s
      end
    end
    value = table.concat(lengths) .. table.concat(fixed) .. table.concat(states)
  end
  local ttl = max(1, min(ceil((fresh - now) / 1000), 2^51))
  if told then ttl = ttl + 3600000 end -- the time that was told is not this server's
  redis.call('SET', KEYS[1], tag .. value, 'PX', string.format('%.0f', ttl))
end
return pack('<dBd', now, 0, granted) .. before
