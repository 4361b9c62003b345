"""What keeps a desk standing while something behind it fails: breakers, budgets, bulkheads, limits, single flights."""
