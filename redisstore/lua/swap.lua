-- Puts ARGV[2] in the place of ARGV[1] for ARGV[3] milliseconds, unless another
-- value is there; empty is none. Answers 1, or 0 if so.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return '0'
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return '1'
