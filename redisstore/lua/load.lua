-- Returns the time of this server, and the value of KEYS[1].
local t = redis.call('TIME')
return struct.pack('<d', t[1] * 1000000 + t[2]) .. (redis.call('GET', KEYS[1]) or '')
