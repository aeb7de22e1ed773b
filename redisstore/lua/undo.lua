-- Takes events back. driver.lua includes this, before it decides a run of requests, in the
-- scripts for commands that have such requests. Of each run it has read op, times, n and
-- wait, and the cost of n events in each bucket.
--
-- Op 3 gives n events back that were granted at the instant wait and did not happen. The kernels
-- have these sections for that, the counterparts of giveBack in package kernel:
--
--   undoHelp  functions that the next section uses
--   giveBack  gives back n events that were granted at taken
if op == 3 then
  --@@holding
  if opens > 0 or turns ~= '' then -- the process undoes
    --@<other
  end
  --@@always
  whole = true
  local taken, reset = wait, KEYS[2] and tonumber(call('GET', KEYS[2]) or '') or 0
  if reset >= taken then return pack('<dBd', now, 3, reset) end
  --@<undoHelp
  for _ = 1, times do
    --@<each
      --@<giveBack
    end
  end
  times = 0
  changed = changed or value ~= '' -- an unused key has nothing to take back
end
