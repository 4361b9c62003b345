local units, period, more = charge(1)
keep(KEYS[1], units, period, math.max(0, missing(KEYS[1], units, period) + more))
return 0
