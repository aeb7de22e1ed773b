-- CalendarWindow: windows with the borders of a calendar (window.lua).
--
-- Constants: the limit, and four borders, which are those of three windows. A script knows no
-- calendar. So the caller sends the windows around the time of the server, as far as it knows that.
-- If the script needs another window, the process decides.
--# opening
local _, limit, border0, border1, border2, border3, now, op, times, n, wait, pos = unpack('<BddddddBI4dd', request)
--# constants
local limit, border0, border1, border2, border3
limit, border0, border1, border2, border3, pos = unpack('<ddddd', request, pos)
--# traits
width = 16,
markSize = 8, markForm = 'd',
--# load +
if start >= border3 then undecided = true end
--# over
-- The window is the one that contains the start. One before these has ended at the first border, or
-- earlier.
local over = border0
if start >= border2 then over = border3
elseif start >= border1 then over = border2
elseif start >= border0 then over = border1
end
--# begin
begin = border0
if when >= border2 then begin = border2
elseif when >= border1 then begin = border1
end
--# known
-- A turn that has come may be for an instant before these windows, and a process that is wrong about
-- the server's time sends others than the present one.
if when < border0 or when >= border3 then undecided = true end
