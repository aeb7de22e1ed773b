-- Cancels reservations of a SlidingWindow or a RollingWindow: the counterpart of
-- ringcancel.go, which says what it does and why. The events of a slot are removed when the
-- slot is first visible.
--@@cancelHelp
local function ringCancel(p, request, pos, now)
  local many
  many, pos = unpack('<I4', request, pos)
  local at, slot, out, n, times, events = {}, {}, {}, {}, {}, {}
  local pre, before, less, unsure, cleared = {}, {}, {}, {}, {} -- of those that raised the frontier
  for i = 1, many do
    local flags, due
    flags, at[i], due, n[i], times[i], pos = unpack('<BdddI4', request, pos)
    slot[i], out[i] = floor(at[i] / p.length), due >= now
    events[i] = flags % 2 == 0 and n[i] * times[i] or 0
    if flags >= 2 then
      local places
      pre[i], before[i], less[i], places, pos = unpack('<dddI4', request, pos)
      unsure[i], cleared[i] = flags >= 4, {}
      for _ = 1, places do
        local place, was
        place, was, pos = unpack('<I4d', request, pos)
        cleared[i][place] = was
      end
    end
  end

  -- The events from an entry to the end of its slot, at first and when those to be
  -- cancelled are removed; and the next entries that raised the frontier, and that have
  -- another instant.
  local all, stay, raised, later = {}, {}, {}, {}
  for i = many, 1, -1 do
    local same = slot[i + 1] == slot[i]
    all[i] = events[i] + (same and all[i + 1] or 0)
    stay[i] = (out[i] and 0 or events[i]) + (same and stay[i + 1] or 0)
    raised[i] = pre[i] and i or raised[i + 1]
    later[i] = at[i + 1] == at[i] and later[i + 1] or i + 1
  end
  -- The first entries of the same slot, and of the same instant in it.
  local first, group = {}, {}
  for i = 1, many do
    first[i] = slot[i - 1] == slot[i] and first[i - 1] or i
    group[i] = at[i - 1] == at[i] and group[i - 1] or i
  end

  -- whether all events in the slot of entry i, since of them from that entry on, were there
  -- before it, without those removed since, or belong to the line
  local function sole(i, since, earlier, removed)
    local there = within(p, slot[i])
    if there == earlier + since then return true end
    if unsure[i] or p.mark ~= 0 then return false end
    return there == max(max(before[i] + since - less[i], 0) - removed, 0)
  end

  -- whether no other limiter can have been promised an instant in the slot of entry i after
  -- it. removed events of that slot, all of them before the next instant, are gone.
  local function alone(i, removed)
    local reach = max(at[i], now)
    if p.frontier <= reach then return true end
    local j = raised[later[i]]
    while j and not pre[j] do j = raised[j + 1] end
    if not j or pre[j] > reach then return false end
    return slot[j] ~= slot[i] or sole(j, all[j], all[first[j]] - all[j] - removed, removed)
  end

  -- removes the events of cancelled entries, which are all those of some slots
  local function remove(from, to)
    local removed = 0
    for i = from, to do
      if slot[i - 1] ~= slot[i] then removed = 0 end
      if out[i] and events[i] > 0 then
        local place = slot[i] % p.slots
        for _ = 1, times[i] do
          if p.mark == 0 and not alone(i, removed) then p.mark = 128 end
          if count(p, place) >= n[i] then put(p, place, count(p, place) - n[i]) end
          removed = removed + n[i]
        end
      end
    end
  end

  -- lowers the frontier to its value before the last entries, if these are cancelled, and
  -- returns whether it did
  local last = many
  local function fall()
    if p.frontier <= now then return false end
    while last > 0 and at[last] > p.frontier do
      if not out[last] then return false end
      last = last - 1
    end
    local i, k = last
    while i > 0 and at[i] == p.frontier do
      if not out[i] then return false end
      if pre[i] then k = i end
      i = i - 1
    end
    if not k then return false end
    local f, g = first[k], group[k]
    if not sole(k, stay[k], stay[f] - stay[k], all[f] - stay[f] - all[g] + stay[g]) then return false end
    p.frontier, pre[k] = pre[k], nil
    for place, was in pairs(cleared[k]) do put(p, place, was) end
    return true
  end

  local to = many -- the last entry that is not removed yet and may become visible
  while to > 0 and slot[to] > latest(p) do to = to - 1 end
  repeat
    local from, oldest = to + 1, latest(p) - p.slots + 1
    while from > 1 and slot[from - 1] >= oldest do from = from - 1 end
    remove(from, to)
    to = from - 1
  until not fall()
  return pos
end
--@@cancel
pos = ringCancel(p, request, pos, now)
leave(p)
