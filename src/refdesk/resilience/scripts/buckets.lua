-- A bucket stores the units missing from it and the time of that level. A process stores the time at which a bucket will
-- be full, by its monotonic clock. With a wall clock that would break when the clock is set back: here no time has
-- passed then, instead of an hour that has to pass again. Invalid values count as a full bucket.
--
-- ARGV: 1 longest debt (µs), 2 tolerance for rounding (µs), then per key: units, period (µs), cost

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local longest_debt, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])

local function charge(i)
  return tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
end

local function missing(key, units, period)
  local value = redis.call('GET', key)
  local level, at = string.match(value or '', '^(%S+) (%S+)$')
  level, at = tonumber(level), tonumber(at)
  local most = units * (1 + longest_debt / period)
  if not level or not at or not (at >= 0 and level >= 0 and level <= most) then
    return 0
  end
  if at > now then
    redis.call('SET', key, string.format('%.17g %.0f', level, now), 'KEEPTTL')
  end
  return math.max(0, level - math.max(0, now - at) * units / period)
end

local function keep(key, units, period, level)
  local microseconds = math.min(level * period / units, longest_debt)
  if microseconds < 1 then
    redis.call('DEL', key)
  else
    local value = string.format('%.17g %.0f', microseconds * units / period, now)
    redis.call('SET', key, value, 'PX', math.ceil(microseconds / 1000))
  end
end
