-- Counts what has happened.
--
-- Op 5 takes as many of n events as are granted; the cost of the run is that of one event. Op 6
-- charges n events. The kernels have these sections for that:
--
--   beyond  sets t to the first instant, from now on, at which events beyond the limit are spent
--   room    sets room to whether the state can hold n more events at t, and sees to it that
--           the reply has all of the state that matters
--   charge  spends n events at t; if there is no such section, spend does
--
-- They are the counterparts of chargeable and charge in package kernel.
if op == 5 then
  -- The costs of the powers of two up to n, of which sums are exact.
  local most, greatest, powers = n, 1, 1
  --@<each
    if p.unit then p.powers = {p.costTicks, p.costUnits} end
  end
  while greatest * 2 <= most do
    --@<each
      if p.unit then
        local ticks, units = p.powers[2 * powers - 1] * 2, p.powers[2 * powers] * 2
        if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
        p.powers[2 * powers + 1], p.powers[2 * powers + 2] = ticks, units
      end
    end
    greatest, powers = greatest * 2, powers + 1
  end
  op = 1 -- the instants after now do not matter
  for _ = 1, times do
    local t, some = now, 0
    --@<each
      if p.unit then p.someTicks, p.someUnits = 0, 0 end
    end
    local step = greatest
    for i = powers, 1, -1 do
      if some + step <= most then
        n = some + step
        local at = now
        --@<each
          if p.unit then
            p.costTicks, p.costUnits = p.someTicks + p.powers[2 * i - 1], p.someUnits + p.powers[2 * i]
            if p.costUnits >= p.unit then p.costTicks, p.costUnits = p.costTicks + 1, p.costUnits - p.unit end
          end
          local when
          --@<ready
          if when > at then at = when end
        end
        if at <= now then
          some = n
          --@<each
            if p.unit then p.someTicks, p.someUnits = p.costTicks, p.costUnits end
          end
        end
      end
      step = step / 2
    end
    n = some
    if some > 0 then
      --@@holding
      local t = now
      --@<passYoungest
      --@@always
      --@<each
        if p.unit then p.costTicks, p.costUnits = p.someTicks, p.someUnits end
        --@<spend
      end
      granted, changed = granted + 1, true
    elseif notes then
      --@@holding
      --@<heldEvents
      local t = now
      --@<passYoungest
      --@@always
      n = 1
      --@<each
        if p.notes then
          --@<refuse
        end
      end
      changed = true
    else
      --@@holding
      if ended then
        local t = now
        --@<passYoungest
      end
      --@@always
      break
    end
  end
  times = 0
elseif op == 6 then
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
