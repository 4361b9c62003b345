-- ARGV: 1 stale period (ms), 2 longest possible TTL (ms), 3 head of the entry that the caller has in memory
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 17, 32) == redis.pcall('GET', KEYS[2]) then
  local left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[1]) and left <= tonumber(ARGV[2]) then
    return string.sub(value, 1, 32) == ARGV[3] and 1 or value
  end
end
return false
