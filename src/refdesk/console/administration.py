"""Keys and tenants in the console, for those who administer the desk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from anyio import to_thread

from refdesk.calls import Call
from refdesk.console.params import ByName, NewKey, Nothing
from refdesk.console.wording import in_our_words
from refdesk.engines.base import Engine


class KeyRing(Protocol):
    """The keys of the desk; everything waits for the disk."""

    def listed(self) -> Sequence[dict[str, Any]]:
        """What is known of every key but the key itself."""
        ...

    def make(
        self,
        name: str,
        *,
        user: str | None,
        tenant: str | None,
        roles: Sequence[str],
        toolsets: Sequence[str],
        servers: Sequence[str],
        expires: str | None,
    ) -> tuple[str, dict[str, Any]]:
        """A new key, and what is known of it."""
        ...

    def revoke(self, name: str) -> str:
        """Forget a key; its name."""
        ...


class Administration:
    """Answers what the pages ask of keys and tenants; that only administrators get here is the permissions' part."""

    def __init__(self, keys: KeyRing, engine: Engine) -> None:
        self._keys = keys
        self._engine = engine

    async def keys(self, call: Call) -> dict[str, Any]:
        """Every key, and nothing by which it could be used."""
        Nothing.of(call)
        return {"keys": await to_thread.run_sync(self._keys.listed)}

    async def make_key(self, call: Call) -> dict[str, Any]:
        """A new key; it is in this answer and nowhere else."""
        asked = NewKey.of(call)
        with in_our_words():
            key, entry = await to_thread.run_sync(partial(self._keys.make, **asked.model_dump()))
        return {"key": key, "entry": entry}

    async def revoke_key(self, call: Call) -> dict[str, Any]:
        """A key that is in force no longer."""
        asked = ByName.of(call)
        with in_our_words():
            return {"revoked": await to_thread.run_sync(self._keys.revoke, asked.name)}

    async def tenants(self, call: Call) -> dict[str, Any]:
        """Whoever has documents or keys here, and how many."""
        Nothing.of(call)
        keys = Counter(key["tenant"] for key in await to_thread.run_sync(self._keys.listed))
        counted = {
            str(tenant.id): {
                "documents": tenant.documents,
                "collections": tenant.collections,
                "bytes": tenant.bytes,
            }
            for tenant in await self._engine.tenants()
        }
        nothing = {"documents": 0, "collections": 0, "bytes": 0}
        ids = sorted({*counted, *keys})
        return {"tenants": [{"id": id, **counted.get(id, nothing), "keys": keys[id]} for id in ids]}
