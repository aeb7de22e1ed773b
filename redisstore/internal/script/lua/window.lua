-- Windows whose events are counted: what FixedWindow (fixed.lua) and CalendarWindow (calendar.lua)
-- share. take.lua describes the blocks. Each kernel has two more, and a calendar has the third:
--
--   over   sets over to the end of the window in the state
--   begin  sets begin to the start of a new window that contains when
--   known  leaves the decision to the process if the script does not know the window of when
--
-- State: the start of the window, and the number of events in it.
--# state
local start, count
--# fits
fits = #s == 16
--# load
if s == '' then start, count = 0, 0 else start, count = unpack('<I8I8', s) end
--# window
-- Sets begin to the start of the window that contains when, inside to the number of events in it,
-- and over as well.
--@ over
--@ known
local begin, inside = start, count
if inside == 0 or when >= over then
  inside = 0
  --@ begin
end
--# ready
when = t
if start > t then when = start end
--@ window
if inside + n > limit then when = over end -- the window is that of the state, because another one has no events
--# spend
local when = t
--@ window
start, count = begin, inside + n
--# fresh
when = start
if count > 0 then
  --@ over
  when = over
end
--# dump
s = pack('<I8I8', start, count)
--# beyond
t = now
if start > t then t = start end
--# room
local when = t
--@ window
room = inside + n <= COUNTS
--# charge
--@ spend
--# mark
local when = t
--@ window
mark = pack('<I8', begin + 1)
--# refunds
if start + 1 == unpack('<I8', mark) and count >= unused then count = count - unused end
