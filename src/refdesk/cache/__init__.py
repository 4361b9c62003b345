"""Answers that were given, kept for a while: in memory or in Redis, each made once at a time."""
