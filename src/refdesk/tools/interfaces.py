"""What the catalogue needs of a tool, a prompt and a family of resources, whoever answers for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from refdesk.calls import Call, Caller

Completion = Sequence[str] | Mapping[str, Any]
"""The values that complete an argument, or the whole answer in its wire shape."""


class Hints(Protocol):
    """What a tool says of itself, and a client may assume before it lets a model call it."""

    @property
    def read_only(self) -> bool: ...


class Offering(Protocol):
    """What a tool and a prompt have in common, whoever answers it."""

    @property
    def name(self) -> str: ...

    @property
    def toolset(self) -> str: ...

    @property
    def is_plain(self) -> bool:
        """Whether a bare request and a bare answer are all it needs."""
        ...

    def seconds_for(self, call: Call) -> float | None:
        """How long a call may take, where that is not what holds for all."""
        ...

    def is_open_to(self, caller: Caller) -> bool:
        """Whether it is there at all for this caller."""
        ...


class OfferedTool(Offering, Protocol):
    """What the catalogue needs of a tool."""

    @property
    def title(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def annotations(self) -> Hints: ...

    @property
    def input_schema(self) -> Mapping[str, Any]: ...

    @property
    def is_listed(self) -> bool:
        """Whether it is in `tools/list`; one that is not can still be called."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether its entry depends on the moment and on who looks."""
        ...

    def listing(self, call: Call) -> dict[str, Any]:
        """Its entry in `tools/list` for this caller."""
        ...

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """The answer in its wire shape."""
        ...


class OfferedPrompt(Offering, Protocol):
    """What the catalogue needs of a prompt."""

    def listing(self) -> dict[str, Any]:
        """Its entry in `prompts/list`."""
        ...

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Its messages, in their wire shape."""
        ...

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Values for one of its arguments."""
        ...


class Resources(Protocol):
    """A family of resources under URIs of one kind."""

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        """The entries of `resources/list`."""
        ...

    def templates(self) -> Iterable[Mapping[str, Any]]:
        """The entries of `resources/templates/list`."""
        ...

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """The contents behind a URI, or None when it is not one of these."""
        ...

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        """Values for a variable of one of the templates."""
        ...


class Elsewhere(Protocol):
    """The resources of other servers: whole calls go in, whole results come out."""

    def listing(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """The entries of `resources/list`."""
        ...

    def templates(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """The entries of `resources/templates/list`."""
        ...

    async def read(self, uri: str, call: Call) -> dict[str, Any] | None:
        """The result of `resources/read`, or None when nobody has such a resource."""
        ...

    async def complete(self, template: str, call: Call) -> dict[str, Any] | None:
        """The result of `completion/complete`, or None when nobody has such a template."""
        ...

    def seconds(self, uri: str) -> float | None:
        """How long a call about this URI may take, where that is not what holds for all."""
        ...
