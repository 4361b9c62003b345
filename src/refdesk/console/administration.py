"""Console methods for API keys and tenants, for administrators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from anyio import to_thread

from refdesk.calls import Call
from refdesk.console.error_wording import translate_argument_names
from refdesk.console.params import NameParams, NewKeyParams, NoParams
from refdesk.engines.base import EngineAdmin


class KeyStore(Protocol):
    """API key storage. All methods block on disk I/O."""

    def listed(self) -> Sequence[dict[str, Any]]:
        """List the keys' properties, without the keys themselves."""
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
        """Create a key; return it with its properties."""
        ...

    def revoke(self, name: str) -> str:
        """Revoke a key and return its name."""
        ...


class Administration:
    """Console methods for keys and tenants. Permissions restrict them to administrators."""

    def __init__(self, keys: KeyStore, engine: EngineAdmin) -> None:
        self._keys = keys
        self._engine = engine

    async def keys(self, call: Call) -> dict[str, Any]:
        """List the keys' properties, without the keys themselves."""
        NoParams.of(call)
        return {"keys": await to_thread.run_sync(self._keys.listed)}

    async def make_key(self, call: Call) -> dict[str, Any]:
        """Create a key. It is returned only this once."""
        params = NewKeyParams.of(call)
        with translate_argument_names():
            key, entry = await to_thread.run_sync(partial(self._keys.make, **params.model_dump()))
        return {"key": key, "entry": entry}

    async def revoke_key(self, call: Call) -> dict[str, Any]:
        """Revoke a key."""
        params = NameParams.of(call)
        with translate_argument_names():
            return {"revoked": await to_thread.run_sync(self._keys.revoke, params.name)}

    async def tenants(self, call: Call) -> dict[str, Any]:
        """List the tenants that have documents or keys, with their counts."""
        NoParams.of(call)
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
