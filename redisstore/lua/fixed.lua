-- FixedWindow. take.lua describes the blocks.
--
-- Constants: the limit, the length of a window, and whether windows are aligned (1 or 0).
-- State: the start of the window, and the number of events in it.
--# kind
local kind = 4
--# opening
local _, limit, length, aligned, now, op, times, n, wait, pos = unpack('<BddBdBI4dd', request)
--# constants
local limit, length, aligned
limit, length, aligned, pos = unpack('<ddB', request, pos)
--# traits
width = 16, drifts = aligned == 0,
markSize = 8, markForm = 'd',
--# state
local start, count
--# fits
fits = #s == 16
--# load
if s == '' then start, count = 0, 0 else start, count = unpack('<I8I8', s) end
--# over
-- Sets over to the end of the window in the state. After a change of the limit, its start may be
-- unaligned; then it is extended to the start of an aligned window.
local over = start + length
if aligned == 1 then over = over + -start % length end
--# window
-- Sets begin to the start of the window that contains when, inside to the number of events in it,
-- and over as well.
--@ over
local begin, inside = start, count
if inside == 0 or when >= over then
  begin, inside = when, 0
  if aligned == 1 then begin = when - when % length end
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
