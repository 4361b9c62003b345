"""Cache keys and patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote

from refdesk.calls import TenantId, UserId

DIGEST_BYTES = 20
"""Long enough to rule out collisions, including deliberate ones."""


@dataclass(frozen=True, slots=True)
class Key:
    """Cache key: caller, tool, parameters and revision of the documents.

    All parts are plain values: strings, numbers, tuples and dataclasses of those.
    """

    tenant: TenantId
    user: UserId
    tool: str
    parameters: tuple[Hashable, ...]
    revision: Hashable = None

    def name(self, secret: bytes = b"") -> str:
        """Return the key as a unique name, `tenant:tool:digest`.

        The digest covers the `repr` of the parts, whose quotes and brackets keep them apart.
        """
        whole = repr((self.tenant, self.user, self.tool, self.parameters, self.revision))
        digest = blake2b(whole.encode("utf-8", "surrogatepass"), key=secret, digest_size=DIGEST_BYTES).hexdigest()
        return f"{escape(self.tenant)}:{escape(self.tool)}:{digest}"


@lru_cache(maxsize=4096)
def escape(word: str) -> str:
    """Percent-encode the characters that have a meaning in a name or a pattern."""
    return quote(word, safe="", errors="surrogatepass")


def build_pattern(tenant: TenantId | None = None, tool: str | None = None) -> str:
    """Return the pattern for `clear_pattern` that matches a tenant, a tool, or both; by default everything."""
    return f"{'*' if tenant is None else escape(tenant)}:{'*' if tool is None else escape(tool)}:*"


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a matcher for names: `*` matches any characters and `?` one."""
    parts = {"*": ".*", "?": "."}
    whole = re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)
    return lambda name: whole.fullmatch(name) is not None


def to_redis_pattern(pattern: str) -> str:
    """Escape the characters that only Redis treats as special."""
    return re.sub(r"([\[\]\\^])", r"\\\1", pattern)
