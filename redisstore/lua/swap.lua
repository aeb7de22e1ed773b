-- Compare and swap: if the value of KEYS[1] is ARGV[1], sets it to ARGV[2] for ARGV[3]
-- milliseconds and returns 1, otherwise returns 0. An empty string means no value.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return '0'
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return '1'
