"""Edits of other programs' settings files that leave all other content unchanged."""
