-- Compare and swap: if the value of KEYS[1] is ARGV[1] (no value, if that is empty), sets it
-- to ARGV[2] for ARGV[3] milliseconds and returns 1, otherwise returns 0.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return '0'
end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return '1'
