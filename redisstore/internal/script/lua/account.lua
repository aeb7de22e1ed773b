-- Operations that main.lua has besides those of take.lua.
--# account
-- Counts what has happened: op 4 charges n events. take.lua has the same for one part.
if op == 4 then
  --@ if holding
  if turns ~= '' then
    --@ leave
  end
  --@ end
  for _ = 1, times do
    local possible = true
    for j = first, many do
      local p = P[j]
      possible = p.charge(n, true) and possible
    end
    if not possible then break end
    --@ if holding
    local t = now
    --@ passYoungest
    --@ end
    for j = first, many do
      local p = P[j]
      p.charge(n)
    end
    changed = true
  end
  times = 0
end
--# upTo
-- Op 8 takes as many of n events as are granted now. If none are, it is denied one. So it becomes op
-- 1, after a search for n: from events are granted, and to events are not.
local more = 0 -- what it adds to the number of requests granted, besides 1
if op == 8 then
  op = 1
  local from, to = 0, n + 1
  if turns ~= '' then to = 1 end
  for j = first, many do
    local p = P[j]
    if p.remaining then to = min(to, p.remaining() + 1) end
  end
  local middle = to - 1 -- mostly, there are all
  while to - from > 1 do
    local at = now
    for j = first, many do
      local p = P[j]
      if p.priced then p.cost(middle) end
      at = max(at, p.ready(now, middle))
    end
    if at > now then to = middle else from = middle end
    middle = floor((from + to) / 2)
  end
  n, more = max(from, 1), from % 32
  for j = first, many do
    local p = P[j]
    if p.priced then p.cost(n) end
  end
end
