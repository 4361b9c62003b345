-- ARGV: 1 entry, 2 its TTL (ms), 3 its generation, 4 lock token
local stored = false
if redis.call('GET', KEYS[2]) == ARGV[3] then stored = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if redis.call('GET', KEYS[3]) == ARGV[4] then redis.call('DEL', KEYS[3]) end
return stored
