-- What main.lua and joint.lua share: the names of functions, the parts, and how the value of a key
-- consists of the states of its parts. The value of an All has the lengths of the states that grow,
-- then the states that do not grow, then those that grow. The value of any other algorithm is its
-- state.
--# library
local call = redis.call
local spread = unpack
local unpack, pack = struct.unpack, struct.pack
local sub, byte, format = string.sub, string.byte, string.format
local floor, max, min = math.floor, math.max, math.min
local LAST = 4611686018427387 -- the latest microsecond that a reservation may be for
local COUNTS = 2251799813685248 -- 2^51, the greatest count in a state
--# shared
-- What the parts know of the request, and its parts P. A key has those from first to many.
local now, op, request, pos
local P, first, many = {}, 1, 1
--@ if holding
local size, form -- the bytes of an entry in the list of holds, and their form
--@ end
--@ if holding calendar
local undecided = false -- whether a part has left the decision to the process
--@ end
-- What makes a part, from its constants at pos.
--@ if all
local makers = {false, false, false, false, false, false, false, false, false, false, false} -- by kind
--@ end
--@ if not all
local make
--@ end
--@ parts
--# short
-- Sets short to whether s is a state of a bucket in the short form, which ends with code, or -1.
-- Redis keeps a decimal number of up to 19 digits in 16 bytes, and others in 32 or more. So the
-- state is such a number if the latest instant (of a queue: the end of its turns) does not matter,
-- if there are no units, and if the time of an event is a number of up to three digits and up to
-- nine zeros: 15 digits for the microseconds since 1.5e15 (in 2017, until 2046), three for those
-- digits and one for the number of zeros. code is the last four.
short = #s == 19 and code and code >= 0 and tonumber(sub(s, 16)) == code and tonumber(sub(s, 1, 15))
--# readParts
-- Reads the states p.s of the parts of an All from value, and sets fits to whether it has all of
-- them. growing is how many of the parts grow.
if value == '' then
  for j = first, many do P[j].s = '' end
else
  local from, grown = 1 + 8 * growing, 0
  fits = #value >= from - 1
  for j = first, many do
    local p = P[j]
    if not p.grows then
      p.s = sub(value, from, from + p.width - 1)
      from = from + p.width
    end
  end
  for j = first, many do
    local p = P[j]
    if p.grows and fits then
      local words = unpack('<I8', value, 8 * grown + 1)
      p.s = sub(value, from, from + 8 * words - 1)
      from, grown = from + 8 * words, grown + 1
    end
  end
  fits = fits and from == #value + 1
end
--# partsValue
-- Sets value to that of the states p.s.
local lengths, fixed, states = '', '', ''
for j = first, many do
  local p = P[j]
  if p.grows then
    lengths, states = lengths .. pack('<I8', #p.s / 8), states .. p.s
  else
    fixed = fixed .. p.s
  end
end
value = lengths .. fixed .. states
--# tellParts
-- Sets value to what affected the decisions, from the states p.s that were read.
if growing > 0 then
  for j = first, many do
    local p = P[j]
    if p.grows then p.s = p.view(p.s) end
  end
  --@ partsValue
end
--# writeParts
-- Sets state to the value of an All after the decisions, and fresh to the time from which it equals
-- that of a new key, if that is later.
local value
for j = first, many do
  local p, when = P[j]
  when, p.s = p.after()
  if when > fresh then fresh = when end
end
--@ partsValue
state = tag .. value
--# writePart
-- The same for a key that is not an All.
local when, s, short = P[first].after(mayShorten)
if when > fresh then fresh = when end
state = short or tag .. s
