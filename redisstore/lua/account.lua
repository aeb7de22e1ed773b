-- Counts what has happened: op 4 charges n events. take.lua has the same for one part.
--# account
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
