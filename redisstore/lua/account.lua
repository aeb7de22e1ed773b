-- Counts what has happened.
--
-- Op 4 charges n events. The kernels have these sections for that:
--
--   beyond  sets t to the first instant, from now on, at which events beyond the limit are spent
--   room    sets room to whether the state can hold n more events at t, and sees to it that
--           the reply has all of the state that matters
--   charge  spends n events at t; if there is no such section, spend does
--
-- They are the counterparts of chargeable and Spend in package kernel.
if op == 4 then
  --@@holding
  if turns ~= '' then
    --@<other
  end
  --@@always
  for _ = 1, times do
    local possible = true
    --@<each
      local t, room
      --@<beyond
      --@<room
      possible = possible and room
    end
    --@@holding
    local t = now
    --@<passYoungest
    --@@always
    if not possible then break end
    --@<each
      local t
      --@<beyond
      --@<charge
    end
    changed = true
  end
  times = 0
end
