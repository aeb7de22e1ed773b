-- Cancels reservations of buckets and WarmingUp, from the end of the line, behind those that
-- stay: undo.go.
--@@cancelHelp
-- While the state s is the one that a cancelled reservation left, replaces it by the one
-- before. Returns the state and the position after the entries, which are the due and the
-- states before and after, of 24 bytes each.
local function unwind(s, width, request, pos, now)
  local many, from = unpack('<I4', request, pos)
  local gone, again = {}, true
  while again do
    again = false
    for i = many - 1, 0, -1 do
      local at = from + 56 * i
      if unpack('<d', request, at) < now then break end -- it stays
      if sub(request, at + 32, at + 31 + width) == s and not gone[i] then
        s = sub(request, at + 8, at + 7 + width)
        gone[i], again = true, true
      end
    end
  end
  return s, from + 56 * many
end
--@@cancel
local s
--@<dump
s, pos = unwind(s, p.width, request, pos, now)
--@<load
