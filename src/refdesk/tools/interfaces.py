"""Protocols of the tools, prompts and resources that the dispatcher serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from refdesk.calls import Call, Caller

Completion = Sequence[str] | Mapping[str, Any]
"""Completion values, or the whole result in its wire shape."""


class ToolHints(Protocol):
    """A tool's behaviour hints, for clients and permissions."""

    @property
    def read_only(self) -> bool: ...


class RegistryEntry(Protocol):
    """Common interface of tools and prompts."""

    @property
    def name(self) -> str: ...

    @property
    def toolset(self) -> str: ...

    def seconds_for(self, call: Call) -> float | None:
        """Return the timeout of a call, if it differs from the default."""
        ...

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether it exists for this caller."""
        ...


class ToolEntry(RegistryEntry, Protocol):
    """A tool in the registry."""

    @property
    def title(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def annotations(self) -> ToolHints: ...

    @property
    def input_schema(self) -> Mapping[str, Any]: ...

    @property
    def is_listed(self) -> bool:
        """Whether it is in `tools/list`; unlisted tools can still be called."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether its entry depends on the caller and the time of the call."""
        ...

    def listing(self, call: Call) -> dict[str, Any]:
        """Return its entry in `tools/list` for this caller."""
        ...

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """Call the tool and return the result in its wire shape."""
        ...


class PromptEntry(RegistryEntry, Protocol):
    """A prompt in the registry."""

    def listing(self) -> dict[str, Any]:
        """Return its entry in `prompts/list`."""
        ...

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Return its messages in their wire shape."""
        ...

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return completion values for one of its arguments."""
        ...


class Resources(Protocol):
    """A resource provider for one URI scheme."""

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/list`."""
        ...

    def templates(self) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/templates/list`."""
        ...

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """Return the contents of a URI, or None if it is not served here."""
        ...

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        """Return completion values for a template variable; `context` has the other variables."""
        ...


class DownstreamItems(Protocol):
    """Tools, prompts and resources of downstream servers; calls and results are forwarded whole."""

    @property
    def revision(self) -> int:
        """Increases whenever the lists may have changed."""
        ...

    @property
    def tools(self) -> Mapping[str, ToolEntry]:
        """The current tools by exposed name."""
        ...

    @property
    def prompts(self) -> Mapping[str, PromptEntry]:
        """The current prompts by exposed name."""
        ...

    def list_resources(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/list`."""
        ...

    def list_templates(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/templates/list`."""
        ...

    async def read_resource(self, uri: str, call: Call) -> dict[str, Any] | None:
        """Return the result of `resources/read`, or None if no server has the resource."""
        ...

    async def complete_template(self, template: str, call: Call) -> dict[str, Any] | None:
        """Return the result of `completion/complete`, or None if no server has the template."""
        ...

    def resource_seconds(self, uri: str) -> float | None:
        """Return the timeout of a call for this URI, if it differs from the default."""
        ...

    async def refresh(self) -> None:
        """Refresh lists that are due, which may take a moment."""
        ...

    def has_complete_lists(self) -> bool:
        """Return whether all running servers have listed their tools."""
        ...
