-- What driver.lua and joint.lua share: the names of functions, and how the value of a key consists
-- of the states of its parts. The value of an All has the lengths of the states that grow, then the
-- states that do not grow, then those that grow. The value of any other algorithm is its state.
--@@library
local call = redis.call
local spread = unpack
local unpack = struct.unpack
local pack = struct.pack
local sub = string.sub
local byte = string.byte
local rep = string.rep
local format = string.format
local floor = math.floor
local ceil = math.ceil
local find = string.find
local max = math.max
local min = math.min
local LAST = 4611686018427387 -- the latest microsecond that a reservation may be for
--@@readParts
-- Reads the states p.s of the parts of an All from value, and sets fits to whether it has all of
-- them. growing is how many of the parts grow.
if value == '' then
  --@<each
    p.s = ''
  end
else
  local from, grown = 1 + 8 * growing, 0
  fits = #value >= from - 1
  --@<each
    if not p.grows then
      p.s = sub(value, from, from + p.width - 1)
      from = from + p.width
    end
  end
  --@<each
    if p.grows and fits then
      local words = unpack('<I8', value, 8 * grown + 1)
      p.s = sub(value, from, from + 8 * words - 1)
      from, grown = from + 8 * words, grown + 1
    end
  end
  fits = fits and from == #value + 1
end
--@@partsValue
-- Sets value to that of the states p.s.
local lengths, fixed, states = '', '', ''
--@<each
  local s = p.s
  if p.grows then
    lengths, states = lengths .. pack('<I8', #s / 8), states .. s
  else
    fixed = fixed .. s
  end
end
value = lengths .. fixed .. states
--@@tellParts
-- Sets value to what affected the decisions, from the states p.s that were read.
if growing > 0 then
  local lengths, fixed, states = '', '', ''
  --@<each
    local s = p.s
    if p.grows then
      --@<view
      lengths, states = lengths .. pack('<I8', #s / 8), states .. s
    else
      fixed = fixed .. s
    end
  end
  value = lengths .. fixed .. states
end
--@@writeParts
-- Sets state to the value after the decisions, and fresh to the time from which it equals that of
-- a new key, if that is later.
local lengths, fixed, states = '', '', ''
--@<each
  local when
  --@<fresh
  if when > fresh then fresh = when end
  local s
  --@<dump
  if p.grows then
    lengths, states = lengths .. pack('<I8', #s / 8), states .. s
  else
    fixed = fixed .. s
  end
end
state = tag .. lengths .. fixed .. states
--@@writePart
-- The same for the part p of a key that is not an All, whose state was s.
local when
--@<fresh
if when > fresh then fresh = when end
--@<shorten
if not state then
  local s
  --@<dump
  state = tag .. s
end
