"""Limits for the lists of a downstream server: entries, pages and sizes."""

from __future__ import annotations

from collections.abc import Mapping

MAX_LIST_PAGES = 1000
MAX_LIST_ENTRIES = 10_000
MAX_LIST_BYTES = 16_777_216
"""Limits for reading one list: more than any real server offers, and small enough to keep for all servers."""

MAX_EXPOSED_ENTRIES: Mapping[str, int] = {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 100}
"""Entries per server: more than any legitimate server has. Templates have a low limit because every URI is matched
against all of them."""

MAX_PINS = 1000
"""Tools pinned per server. None is ever evicted, because that would be a way to change it: tools beyond the limit
are held."""

MAX_DEFINITION_BYTES = 256 * 1024
"""Size of one definition: more than a model could read, or a client should have to."""

MAX_NAME_CHARACTERS = 256
MAX_URI_CHARACTERS = 8000
"""Length of tool and prompt names, and of URIs. They are displayed, logged and stored in many places."""
