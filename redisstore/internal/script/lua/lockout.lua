-- Lockout. take.lua describes the blocks.
--
-- Constants: the limit, how long events count that do not lock, how long the first lock lasts, and
-- how long any lasts at most.
-- State: the instant at which the count began, that of the latest event, the end of the lock before,
-- how often the length of the lock is doubled, and the count.
--# opening
local _, limit, window, shortest, longest, now, op, times, n, wait, pos =
  unpack('<BdddddBI4dd', request)
--# constants
local limit, window, shortest, longest
limit, window, shortest, longest, pos = unpack('<dddd', request, pos)
--# traits
width = 40, drifts = true,
markSize = 8, markForm = 'd',
--# state
local began, latest, served, doublings, count
--# fits
fits = #s == 40
--# load
if s == '' then
  began, latest, served, doublings, count = 0, 0, 0, 0, 0
else
  began, latest, served, doublings, count = unpack('<I8I8I8I8I8', s)
end
--# span
-- Sets span to how long the lock lasts that the state is in, or would be in. Its length is doubled
-- exactly, whatever it is, and at most 63 times.
local span = shortest * 2 ^ doublings
if span > longest then span = longest end
--# current
-- Sets inside to the events that count at when, over to the end of the lock or, if there is none, to
-- when they are forgotten, and begin, ended and doubled to what the state has as of then.
--@ span
local begin, inside, ended, doubled, over = began, count, served, doublings, began + window
if count >= limit then
  over = latest + span
  if when >= over then
    ended, inside = over, 0
    if span < longest then doubled = doublings + 1 end
  end
elseif when >= over then
  inside = 0
end
if inside < limit and when >= ended + longest then doubled = 0 end
if inside == 0 then begin = when end
--# ready
when = t
if latest > t then when = latest end
--@ current
if inside + n > limit then when = over end
--# spend
local when = t
--@ current
began, latest, served, doublings, count = begin, t, ended, doubled, inside + n
--# fresh
when = latest
local grows = shortest < longest
local locked = count >= limit
if locked then
  --@ span
  when = latest + span
  if grows then when = when + longest end
end
--@ if holding
locked = false -- as it is once a hold has given its events back
--@ end
if not locked then
  if count > 0 and began + window > when then when = began + window end
  if doublings > 0 and grows and served + longest > when then when = served + longest end
end
--# dump
s = pack('<I8I8I8I8I8', began, latest, served, doublings, count)
--# beyond
t = now
if latest > t then t = latest end
--# room
local when = t
--@ current
room = inside + n <= COUNTS
--# charge
--@ spend
--# mark
local when = t
--@ current
mark = pack('<I8', begin + 1)
--# leasts
local refunds = {}
--# refunds
refunds[k] = {min(now, finish), mark, unused}
--# lower
-- In the order in which the holds end: it makes a difference whether one has ended before the lock
-- or after it.
table.sort(refunds, function(a, b) return a[1] < b[1] end)
for _, refund in ipairs(refunds) do
  local when = refund[1]
  --@ current
  if begin + 1 == unpack('<I8', refund[2]) and inside >= refund[3] then count = count - refund[3] end
end
