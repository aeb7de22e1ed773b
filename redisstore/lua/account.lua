-- Counts what has happened. driver.lua includes this after undo.lua, in the same scripts.
--
-- Op 5 takes as many of n events as are granted; the cost of the run is that of one event. Op 6
-- charges n events. Op 7 settles a hold: the bytes that follow are those of AppendSettlement. An
-- InFlight gives back all events of the hold. The other parts give back n of them (if does is 1),
-- or charge n events (2), or stay as they are (0). The kernels have these sections for that:
--
--   beyond  sets t to the first instant, from now on, at which events beyond the limit are spent
--   room    sets room to whether the state can hold n more events at t, and sees to it that
--           the reply has all of the state that matters
--   debt    sets ahead if the state is a debt, which may be a reservation that t does not show,
--           and sees to the reply as well
--   charge  spends n events at t; if there is no such section, spend does
--   latest  sets same if the state shows that the key was not reset since the hold: that is so if
--           the latest instant in it is that of the hold, because after a Reset it is 0 or later
--   refund  gives back n of the held events granted at taken, of which left have happened; ahead
--           says whether a reservation is ahead in any part; reads what it needs from pos in
--           request on, advances pos, and sets changed if it has changed the state
--
-- They are the counterparts of chargeable, behind, charge and refund in package kernel.
local COUNTS = 2251799813685248 -- 2^51, the greatest count in a state
if op == 5 then
  -- The costs of the powers of two up to n, of which sums are exact.
  local most, size, powers = n, 1, 1
  --@<each
    if p.unit then p.powers = {p.costTicks, p.costUnits} end
  end
  while size * 2 <= most do
    --@<each
      if p.unit then
        local ticks, units = p.powers[2 * powers - 1] * 2, p.powers[2 * powers] * 2
        if units >= p.unit then ticks, units = ticks + 1, units - p.unit end
        p.powers[2 * powers + 1], p.powers[2 * powers + 2] = ticks, units
      end
    end
    size, powers = size * 2, powers + 1
  end
  op = 1 -- the instants after now do not matter
  for _ = 1, times do
    local t, some = now, 0
    --@<each
      if p.unit then p.someTicks, p.someUnits = 0, 0 end
    end
    local step = size
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
      --@<each
        if p.unit then p.costTicks, p.costUnits = p.someTicks, p.someUnits end
        --@<spend
      end
      granted, changed = granted + 1, true
    elseif notes then
      n = 1
      --@<each
        if p.notes then
          --@<refuse
        end
      end
      changed = true
    else
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
    if not possible then break end
    --@<each
      local t
      --@<beyond
      --@<charge
    end
    changed = true
  end
  times = 0
elseif op == 7 then
  --@<undoHelp
  local taken, made, held, does
  taken, made, held, does, pos = unpack('<dddB', request, pos)
  if held > 0 then
    local same = false
    --@<each
      --@<latest
    end
    if not same then
      --@<readReset
      if reset >= made then return pack('<dBd', now, 3, reset) end
    end
  end
  local left, possible, ahead = held - n, true, false
  --@<each
    local t
    --@<beyond
    if does == 2 then
      local room
      --@<room
      possible = possible and room
    end
    ahead = ahead or t > now
    --@<debt
  end
  if does ~= 2 or possible then
    --@<each
      local n, flies = n, p.kind == 9 -- whether it is an InFlight
      if flies then n = held end
      if flies and n > 0 or does == 1 and not flies then
        --@<refund
      elseif does == 2 and not flies then
        local t
        --@<beyond
        --@<charge
        changed = true
      end
    end
  end
  times = 0
end
