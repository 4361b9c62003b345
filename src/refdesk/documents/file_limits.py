"""Limits of a conversion: file size and time, on the server and in the client."""

from __future__ import annotations

MEGABYTE = 1024 * 1024

MAX_FILE_BYTES = 100 * MEGABYTE
"""Larger files are rejected."""

URL_SECONDS = 180.0
"""Time limit for downloading and converting a URL."""

EXPORT_SECONDS = 60.0
"""Time limit of an export."""


def get_time_limit(size: int) -> float:
    """Return the time limit of a conversion in seconds, by the size of its file in bytes."""
    if size < 10 * MEGABYTE:
        return 60.0
    return 180.0 if size < 50 * MEGABYTE else 300.0
