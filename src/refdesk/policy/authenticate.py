"""Who is calling: an API key becomes a caller with a tenant and roles, and a desk that asks for keys lets no other in.

Keys are kept and compared as SHA-256 digests, so no comparison can leak how much of a guess was right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from refdesk.calls import ANONYMOUS, Answer, Call, Caller, Handler, TenantId, UserId
from refdesk.config import ApiKey
from refdesk.errors import Unauthenticated

WRONG_KEY = "Invalid API key"


def digest(key: str) -> bytes:
    """The form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def callers_by_key(keys: Iterable[ApiKey]) -> dict[bytes, Caller]:
    """Who calls with which key."""
    return {
        bytes.fromhex(key.digest): Caller(
            user=UserId(key.user), tenant=TenantId(key.tenant), roles=frozenset(key.roles), authenticated=True
        )
        for key in keys
    }


class Authenticate:
    """`identify` turns a credential into a caller at the door; the policy makes sure that no way in has skipped it."""

    def __init__(self, callers: Mapping[bytes, Caller], *, required: bool) -> None:
        self._callers = dict(callers)
        self._required = required

    @property
    def has_keys(self) -> bool:
        """Whether there is any key at all."""
        return bool(self._callers)

    def identify(self, credential: str | None) -> Caller:
        """The caller behind a credential; raises when it is wrong, or missing where one is required."""
        if not self._callers:
            return ANONYMOUS
        if credential is not None:
            caller = self._callers.get(digest(credential))
            if caller is not None:
                return caller
        # Where keys are only offered, a wrong one is still told so: its owner believes to be somebody.
        if self._required or credential is not None:
            raise Unauthenticated(WRONG_KEY)
        return ANONYMOUS

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        if self._required and not call.caller.authenticated:
            raise Unauthenticated(WRONG_KEY)
        return await proceed(call)
