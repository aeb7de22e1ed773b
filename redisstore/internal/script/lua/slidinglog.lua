-- SlidingLog: what log.lua does not say. The denied events in it stay.
--# refunds
local at = unpack('<I8', mark)
if at > 0 and unused > 0 then removals[#removals + 1] = {at - 1, unused} end
