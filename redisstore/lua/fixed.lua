-- FixedWindow. These are sections that script.go inserts into driver.lua; p has the constants of the limit, which
-- program.go sends. The state is the start of the window, and the number of events in it. The driver loads the state, asks
-- ready for the first instant from now on at which the events are granted, spends them if that is now, and dumps the state
-- with the time until it is that of a fresh key.
--@@over
-- sets over to the end of the window in the state. After a change of the limit, its start may
-- be unaligned; then it is extended to the start of an aligned window.
local over = p.start + p.length
if p.aligned == 1 then over = over + -p.start % p.length end
--@@window
-- sets start to the start of the window that contains when, count to the number of events in
-- it, and over as well
--@<over
local start, count = p.start, p.count
if count == 0 or when >= over then
  start, count = when, 0
  if p.aligned == 1 then start = when - when % p.length end
end
--@@open
p.most, p.length, p.aligned, pos = unpack('<ddB', request, pos)
p.width = 16
--@@load
if s == '' then p.start, p.count = 0, 0 else p.start, p.count = unpack('<I8I8', s) end
--@@ready
when = t
if p.start > t then when = p.start end
--@<window
if count + n > p.most then when = over end -- the window is that of the state, because another one has no events
--@@spend
local when = t
--@<window
p.start, p.count = start, count + n
--@@fresh
when = p.start
if p.count > 0 then
  --@<over
  when = over
end
--@@dump
s = pack('<I8I8', p.start, p.count)
--@@beyond
t = now
if p.start > t then t = p.start end
--@@room
local when = t
--@<window
room = count + n <= COUNTS
--@@markSize
p.markSize, form = 8, form .. 'd'
--@@mark
local when = t
--@<window
mark = pack('<I8', start + 1)
--@@refunds
if p.start + 1 == unpack('<I8', mark) and p.count >= unused then p.count = p.count - unused end
