-- The functions of a part in main.lua and joint.lua: an algorithm has one part, and an All has
-- several. script.go joins this file once for each kind of parts in a script. The state of a part
-- is in local variables of the function that makes it, so that the code of a kernel is the same
-- here and in take.lua, which describes most blocks. What a kernel lacks, the part p of that kernel
-- lacks: p.hold and the like are nil then.
--
-- Besides functions, a part has what the others must know:
--
--   width     the length of its state, unless p.grows is true
--   grows     whether its state has no fixed length
--   priced    whether its events have costs in the request
--   queue     whether it delays events
--   notes     whether it counts denied events
--   flies     whether its events are in flight until they are released
--   drifts    whether leaving out a turn may change what comes after it
--   markSize  the bytes of a mark, of which markForm is the form. levels says whether the events
--             of a hold that come back depend on others
--
-- A log has a block for op 8:
--
--   remaining sets most to how many events are granted now
--
-- The blocks for holds are the counterparts of the functions of a holder in package kernel:
--
--   costs     sets the cost of n events, if the kernel has one (for turns)
--   mark      sets mark to that of n events that are about to be spent at t
--   passMark  changes mark, that of the youngest hold, before events are spent at t
--   leasts    looks at the marks of the holds in list before some end; may read the list into words, and
--             set p.merged if the mark of the first hold that ends does not stand for those of all
--             younger ones
--   refunds   takes unused of the held events of the k-th hold that ends back
--   lower     changes the marks after that
--   move      moves the n events of a hold from its end was to another one, finish. Without was, they
--             are those at the frontier
do
  --@ if all
  --@ kind
  makers[kind] = function()
  --@ end
  --@ if not all
  make = function()
  --@ end
    --@ constants
    --@ state
    local p
    p = { -- with all fields, so that the table is made in its final size
      s = '', n = 0, ahead = false, -- what the script notes of the part
      --@ if holding
      markAt = 0, merged = false, known = false, oneTicks = 0, oneUnits = 0,
      --@ end
      --@ traits
      load = function(s)
        --@ load
      end,
      ready = function(t, n)
        local when
        --@ ready
        return when
      end,
      spend = function(t, n)
        --@ spend
      end,
      -- Returns when the state equals that of a new key, and the state or its short form.
      after = function(mayShorten)
        local when, s, state
        --@ fresh
        --@ if bucket queue
        if mayShorten then
          --@ shorten
          if state then return when, nil, state end
        end
        --@ end
        --@ dump
        return when, s
      end,
      --@ if bucket queue
      -- Sets the cost of a request to that of n events or, without n, reads it.
      cost = function(n)
        --@ if holding
        if n then
          --@ costs
          return
        end
        --@ end
        --@ cost
      end,
      --@ end
      --@ if queue
      delay = function(t)
        local when
        --@ delay
        return when
      end,
      --@ end
      --@ if log
      refuse = function(n, held)
        --@ refuse
      end,
      --@ end
      --@ if log flight
      view = function(s)
        if p.known then need = math.huge end
        --@ view
        return s
      end,
      --@ end
      --@ if longer holding
      -- Spends n events beyond the limit or, if asks is true, returns whether the state can hold
      -- them.
      charge = function(n, asks)
        local t
        --@ beyond
        if asks then
          local room
          --@ room
          return room
        end
        --@ charge
      end,
      --@ end
      --@ if holding
      -- Returns the mark of n events that are about to be spent at t or, if levels is true and a
      -- mark is given, what becomes of that one before any events are spent at t.
      mark = function(t, n, mark)
        --@ if bucket queue interval
        if mark then
          --@ passMark
          return mark
        end
        --@ end
        --@ mark
        return mark
      end,
      -- Takes back what the holds at the indexes out of list, in order, have not used: the numbers
      -- in back.
      takeBack = function(list, out, back, words)
        local t = now
        p.merged = nil
        --@ leasts
        for k = 1, #out do
          local at = (out[k] - 1) * size
          local _, finish, events = unpack('<I8I8I8', list, at + 1)
          local mark, held, unused = sub(list, at + p.markAt, at + p.markAt + p.markSize - 1), (events - events % 2) / 2, back[k]
          p.merged = p.merged or mark
          --@ refunds
        end
        --@ lower
        return words
      end,
      --@ if log flight
      -- Returns how many events are granted now.
      remaining = function()
        local most
        --@ remaining
        return most
      end,
      --@ end
      --@ if flight
      move = function(was, finish, n)
        --@ move
      end,
      --@ end
      --@ end
    }
    return p
  end
end
