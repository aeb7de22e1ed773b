-- The script decides one request on several keys at one time: it spends the events of all of them
-- if all grant them, and otherwise of none. It is a template like driver.lua, which describes the
-- sections. Each part p of a key is one of P; --@<each is a loop over those from first to many,
-- in which n is the number of events of the part's key. A key of no events neither refuses nor
-- changes.
--
-- KEYS[k]      a key
-- ARGV[1]      the time, or a negative number for the time of this server; the operation: 1 takes
--              the events, 8 holds them, 0 spends nothing
-- ARGV[2*k]    of a key: whether its algorithm is an All, and the number of events; if it is an
--              All, the number of its parts; for each part its kind and its constants; for each
--              bucket the cost of the events
-- ARGV[2*k+1]  the prefix of the key's states
--
-- The reply is the time, 0, whether the events were spent, and for each key the length of its
-- state and the state, from before. If a value is not a state of the key's limit, nothing is
-- changed, and the reply is the time and 1. Nothing is written before all states are known, so a
-- script that fails changes nothing.

--@<library

local now, op = unpack('<dB', ARGV[1])
local holds = op == 8
if holds then op = 1 end
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
  local all, n, pos = unpack('<Bd', request)
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
  if value ~= '' and not from then
    return pack('<dB', now, 1)
  end
  value = sub(value, (from or 0) + 1)
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
  keys[k] = {first = first, many = many, growing = growing, all = all == 1, tag = tag, value = value}
end

-- the decision
local granted = op == 1
first = 1
--@<each
  local t, when = now
  --@<ready
  if when > now and n > 0 then granted = false end
end
local noted = op == 1 and not granted and notes
if granted then
  --@<each
    if n > 0 then
      local t = now
      --@<spend
    end
  end
elseif noted then
  --@<each
    if p.notes then
      --@<refuse
    end
  end
end

-- the answer, and the next states
local whole = false -- the reply has only what the decision depends on
local reply, after, ttls = {pack('<dBd', now, 0, granted and 1 or 0)}, {}, {}
for k = 1, #KEYS do
  local q = keys[k]
  local value, tag, growing = q.value, q.tag, q.growing
  first, many = q.first, q.many
  if value ~= '' then
    if q.all then
      --@<tellParts
    elseif growing > 0 then
      local p, s = P[first], value
      --@<view
      value = s
    end
  end
  reply[k + 1] = pack('<I4', #value) .. value
  local changed = granted and P[first].n > 0
  if noted then
    --@<each
      changed = changed or p.notes
    end
  end
  if changed then
    local fresh, state = now
    if q.all then
      --@<writeParts
    else
      local p, s = P[first], q.value
      --@<writePart
    end
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
return table.concat(reply)
