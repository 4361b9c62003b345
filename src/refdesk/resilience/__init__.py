"""Fault tolerance: circuit breakers, retry budgets, bulkheads, rate limits and single flight."""
