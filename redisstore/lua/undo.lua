-- Takes events back. driver.lua includes this, before it decides a run of requests, in the
-- scripts for commands that have such requests. Of each run it has read op, times, n and
-- wait, and the cost of n events in each bucket.
--
-- Op 3 gives n events back that were granted at the instant wait and did not happen. Op 4
-- cancels reservations: the n bytes that follow are those of AppendCancellation, described
-- in internal/kernel/encode.go. The kernels have these sections for that:
--
--   undoHelp    functions that the next sections use
--   giveBack    gives back n events that were granted at taken
--   cancelHelp  functions that cancel uses besides
--   cancel      cancels the reservations in request from pos on, and advances pos
--
-- They are the counterparts of giveBack and cancel in package kernel. A cancellation takes
-- time in proportion to its length.
if op == 3 or op == 4 then
  --@@holding
  if opens > 0 then return pack('<dB', now, 1) .. call('GET', KEYS[1]) end -- the process undoes
  --@@always
  whole = true
  --@<readReset
  --@<undoHelp
  if op == 3 then
    local taken = wait
    if reset >= taken then return pack('<dBd', now, 3, reset) end
    for _ = 1, times do
      --@<each
        --@<giveBack
      end
    end
  else
    --@<cancelHelp
    local after, last = pos + n
    last, pos = unpack('<d', request, pos)
    if last >= now then -- one of them is in time
      local made
      made, pos = unpack('<d', request, pos)
      if reset >= made then return pack('<dBd', now, 3, reset) end
      --@<each
        --@<cancel
      end
    end
    pos = after
  end
  times = 0
  changed = changed or value ~= '' -- an unused key has nothing to take back
end
