"""Policies that stand around every call, one a file, all of one signature."""
