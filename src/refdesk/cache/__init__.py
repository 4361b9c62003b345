"""Response cache in memory or in Redis."""
