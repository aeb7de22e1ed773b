-- FixedWindow: windows of one length (window.lua).
--
-- Constants: the limit, the length of a window, and whether windows are aligned (1 or 0).
--# opening
local _, limit, length, aligned, now, op, times, n, wait, pos = unpack('<BddBdBI4dd', request)
--# constants
local limit, length, aligned
limit, length, aligned, pos = unpack('<ddB', request, pos)
--# traits
width = 16, drifts = aligned == 0,
markSize = 8, markForm = 'd',
--# over
-- After a change of the limit, the start of the window may be unaligned; then it is extended to the
-- start of an aligned window.
local over = start + length
if aligned == 1 then over = over + -start % length end
--# begin
begin = when
if aligned == 1 then begin = when - when % length end
