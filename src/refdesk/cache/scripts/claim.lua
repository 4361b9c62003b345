-- ARGV: 1 stale period (ms), 2 a new generation, 3 its TTL (s), 4 lock token, 5 lock TTL (ms)
local generation = redis.pcall('GET', KEYS[2])
if type(generation) ~= 'string' then
  generation = ARGV[2]
  redis.pcall('SET', KEYS[2], generation, 'EX', ARGV[3])
end
local value = redis.pcall('GET', KEYS[1])
local left = 0
if type(value) == 'string' and string.sub(value, 17, 32) == generation then
  left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[1]) then return {value, left, generation, 0} end
else
  value = false
end
local others = redis.pcall('SET', KEYS[3], ARGV[4], 'NX', 'PX', ARGV[5]) == false
if others and redis.call('GET', KEYS[3]) == ARGV[4] then
  others = redis.call('PEXPIRE', KEYS[3], ARGV[5]) == 0
end
return {value, left, generation, others and 0 or 1}
