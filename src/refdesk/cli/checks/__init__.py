"""Checks of `refdesk doctor`, one module per subject. Checks are read-only."""
