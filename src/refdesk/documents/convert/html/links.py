"""Where a link leads, seen from outside of its page."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urljoin

MAX_TARGET = 2000
"""Characters; longer targets hold data, not an address."""

_CONTROLS = re.compile(r"[\x00-\x20]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LINK_SCHEMES = frozenset(("http", "https", "mailto", "ftp", "ftps", "tel"))
"""Schemes that address something; `javascript:`, `data:` and the like do things instead."""


@lru_cache(maxsize=4096)
def resolve_link(target: str, base: str) -> str:
    """The address that a link leads to, or nothing for places on the same page and for what is no address."""
    target = _CONTROLS.sub("", target)
    if not target or target[0] == "#" or len(target) > MAX_TARGET:
        return ""
    scheme = _SCHEME.match(target)
    if scheme is not None:
        return target if scheme[1].lower() in _LINK_SCHEMES else ""
    if not base:
        return target
    try:
        return urljoin(base, target)
    except ValueError:
        return ""
