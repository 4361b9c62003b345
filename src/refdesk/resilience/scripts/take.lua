local levels, longest, slowest = {}, tolerance, 0
for i, key in ipairs(KEYS) do
  local units, period = charge(i)
  levels[i] = missing(key, units, period)
  local wait = (levels[i] + 1 - units) * period / units
  if wait > longest then longest, slowest = wait, i end
end
if slowest > 0 then return {slowest, math.ceil(longest)} end
for i, key in ipairs(KEYS) do
  local units, period, cost = charge(i)
  keep(key, units, period, levels[i] + cost)
end
return {0, 0}
