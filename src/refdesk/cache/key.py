"""What an answer is found by: a value with all in it that decides on the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote

from refdesk.calls import TenantId, UserId

DIGEST_BYTES = 20
"""Of a key: so long that no two questions ever have the same one, also when somebody looks for such a pair."""


@dataclass(frozen=True, slots=True)
class Key:
    """Who asked what, and at which state of the documents. All parts are plain values: texts, numbers, tuples,
    dataclasses of those."""

    tenant: TenantId
    user: UserId
    tool: str
    asked: tuple[Hashable, ...]
    revision: Hashable = None

    def name(self, secret: bytes = b"") -> str:
        """The key as one word, `tenant:tool:digest`, which no other key has.

        The digest is of the parts as Python writes them, where quotes and brackets keep each apart from the next.
        """
        whole = repr((self.tenant, self.user, self.tool, self.asked, self.revision))
        digest = blake2b(whole.encode("utf-8", "surrogatepass"), key=secret, digest_size=DIGEST_BYTES).hexdigest()
        return f"{escaped(self.tenant)}:{escaped(self.tool)}:{digest}"


@lru_cache(maxsize=4096)
def escaped(word: str) -> str:
    """A word without the characters that mean something in a name or a pattern."""
    return quote(word, safe="", errors="surrogatepass")


def pattern_of(tenant: TenantId | None = None, tool: str | None = None) -> str:
    """The pattern for `clear_pattern` that matches all of a tenant, of a tool, or of both; none matches everything."""
    return f"{'*' if tenant is None else escaped(tenant)}:{'*' if tool is None else escaped(tool)}:*"


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches: `*` stands for any characters and `?` for one, all others for themselves."""
    parts = {"*": ".*", "?": "."}
    whole = re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)
    return lambda name: whole.fullmatch(name) is not None


def redis_pattern(pattern: str) -> str:
    """The same pattern for Redis, to which brackets and backslashes mean something too."""
    return re.sub(r"([\[\]\\^])", r"\\\1", pattern)
