"""Link targets as absolute URLs."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urljoin

MAX_TARGET = 2000
"""Characters; longer targets hold data."""

_CONTROLS = re.compile(r"[\x00-\x20]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LINK_SCHEMES = frozenset(("http", "https", "mailto", "ftp", "ftps", "tel"))
"""Schemes that address a resource, unlike `javascript:` and `data:`."""


@lru_cache(maxsize=4096)
def resolve_link(target: str, base: str) -> str:
    """Resolve a link target; empty for fragments of the same page and unsupported schemes."""
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
