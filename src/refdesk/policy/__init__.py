"""Policies that wrap every call: one per module, all with the same signature."""
