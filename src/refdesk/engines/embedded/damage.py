"""Error raised if a derived index can't be read. The owner rebuilds the index."""

from __future__ import annotations


class IndexDamaged(Exception):
    """An index file is missing, truncated, corrupt, or of another version."""
