"""What is raised when the files of a derived index cannot be read: whoever owns it makes it anew."""

from __future__ import annotations


class IndexDamaged(Exception):
    """A file of an index is missing, cut short, not what it should be, or of another version."""
