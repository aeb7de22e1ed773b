-- What a SlidingLog does about holds. The denied events in it stay.
--@@refunds
local at = unpack('<I8', mark)
if at > 0 and unused > 0 then p.removals[#p.removals + 1] = {at - 1, unused} end
