"""Dispatches MCP methods to the tools, resources and prompts of the registry.

It is the innermost handler: it knows MCP methods and wire shapes, but no transports.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from refdesk.calls import Answer, Call, Event, ListChanged, RegistryEntry, ToolEntry, text_content, tool_answer
from refdesk.errors import (
    ERROR_META,
    InvalidArguments,
    MethodNotFound,
    Problem,
    ToolFailure,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
)
from refdesk.tools.registry import Completion, PromptEntry, Registry, Tool
from refdesk.validation import nearest_name, shorten

MAX_URI_CHARACTERS = 8000
"""Longer URIs are rejected without a lookup."""

MAX_COMPLETIONS = 100
"""The protocol's limit on completion values."""

MAX_SUGGESTION_CANDIDATES = 500
"""Names compared with a misspelled one; each takes some ten microseconds."""

MAX_VIEWS = 256
"""Cached list views: one per kind of caller, of which there are few."""

DOWNSTREAM_TOOLSET = "downstream"
"""The toolset of downstream servers."""

E = TypeVar("E", bound=RegistryEntry)
Entry = Mapping[str, Any] | ToolEntry
"""A list entry, or the tool that computes it for each call."""


class Dispatcher:
    """Answers calls from a registry; `page_size` limits a page of any list."""

    def __init__(self, registry: Registry, toolsets: Iterable[str], page_size: int) -> None:
        self._registry = registry
        self._toolsets = frozenset(toolsets)
        self._page_size = page_size
        self._views: dict[Hashable, list[Entry]] = {}
        self._revision = 0
        """Revision of the downstream lists in the cached views."""
        registry.listen(self._on_event)
        self._methods: dict[str, Callable[[Call], Awaitable[dict[str, Any]]]] = {
            "tools/list": partial(self._list, self._list_tools),
            "tools/call": self._call_tool,
            "resources/list": partial(self._list, self._list_resources),
            "resources/templates/list": partial(self._list, self._list_templates),
            "resources/read": self._read_resource,
            "prompts/list": partial(self._list, self._list_prompts),
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    async def __call__(self, call: Call) -> Answer:
        method = self._methods.get(call.method) or self._registry.methods.get(call.method)
        if method is None:
            raise MethodNotFound(call.method)
        return Answer(await method(call))

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return a tool's input schema, without dynamic choices."""
        tool = self._registry.find_tool(name)
        return tool.input_schema if tool is not None and tool.toolset in self._toolsets else None

    def seconds(self, call: Call) -> float | None:
        """Return the timeout of a call if its target has one of its own."""
        if call.tool is not None:
            return call.tool.seconds_for(call)
        name, uri = "", ""
        if call.method == "prompts/get":
            name = call.target
        elif call.method == "resources/read":
            uri = call.target
        elif call.method == "completion/complete" and isinstance(reference := call.params.get("ref"), Mapping):
            name, uri = str(reference.get("name", "")), str(reference.get("uri", ""))
        prompt, downstream = self._registry.find_prompt(name) if name else None, self._registry.downstream
        if prompt is not None:
            return prompt.seconds_for(call)
        return downstream.resource_seconds(uri) if uri and downstream is not None else None

    def has_header_params(self, tool: str) -> bool:
        found = self._registry.find_tool(tool)
        return isinstance(found, Tool) and found.has_header_params

    def tools(self, call: Call) -> list[ToolEntry]:
        """Return the tools listed for a call, in order of registration."""
        return [tool for tool in self.open_tools(call) if tool.is_listed]

    def open_tools(self, call: Call) -> list[ToolEntry]:
        """Return the tools a call may use, listed or not."""
        return self._filter_open(self._registry.tools.values(), call)

    def _filter_open(self, entries: Iterable[E], call: Call) -> list[E]:
        toolsets = self.resolve_toolsets(call)
        return [entry for entry in entries if entry.toolset in toolsets and entry.is_open_to(call.caller)]

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ListChanged):
            self._views.clear()

    def _get_view(self, kind: str, call: Call, assemble: Callable[[], Iterable[Entry]]) -> list[Entry]:
        """Return a list for this kind of caller, cached until something changes."""
        downstream = self._registry.downstream
        if downstream is not None and downstream.fleet.revision != self._revision:
            self._revision = downstream.fleet.revision
            self._views.clear()
        key = kind, self.resolve_toolsets(call), call.caller.servers, call.caller.tenant
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            view = self._views[key] = list(assemble())
        return view

    async def _list(self, build_page: Callable[[Call], dict[str, Any]], call: Call) -> dict[str, Any]:
        """Return a page of a list, with the current lists of downstream servers."""
        downstream = self._registry.downstream
        if downstream is not None:
            await downstream.fleet.refresh_stale_lists()
            if not downstream.has_complete_lists():
                # Clients must not cache a list that is about to grow.
                return {**build_page(call), "ttlMs": 0}
        return build_page(call)

    def _list_tools(self, call: Call) -> dict[str, Any]:
        def build() -> Iterable[Entry]:
            return (tool if tool.is_live else tool.listing(call) for tool in self.tools(call))

        return self._paginate(call, "tools", self._get_view("tools", call, build))

    async def _call_tool(self, call: Call) -> dict[str, Any]:
        tool = call.tool
        # Resolving the toolsets also rejects unknown ones.
        if tool is None or tool.toolset not in self.resolve_toolsets(call) or not tool.is_open_to(call.caller):
            _require_text(call.params, "name")
            raise UnknownTool(_format_unknown("tool", call.target, [tool.name for tool in self.open_tools(call)]))
        try:
            arguments = call.params.get("arguments")
            return await tool({} if arguments is None else arguments, call)
        except ToolFailure as failure:
            return {**tool_answer([text_content(failure.detail)], is_error=True), "_meta": {ERROR_META: failure.data}}

    def _list_resources(self, call: Call) -> dict[str, Any]:
        listings: list[Entry] = [
            listing for resources in self._registry.resources for listing in resources.listing(call)
        ]
        downstream = self._registry.downstream
        if downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call):
            listings += self._get_view("resources", call, lambda: downstream.list_resources(call.caller))
        return self._paginate(call, "resources", listings)

    def _list_templates(self, call: Call) -> dict[str, Any]:
        templates: list[Entry] = [
            template for resources in self._registry.resources for template in resources.templates()
        ]
        downstream = self._registry.downstream
        if downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call):
            templates += self._get_view("templates", call, lambda: downstream.list_templates(call.caller))
        return self._paginate(call, "resourceTemplates", templates)

    async def _read_resource(self, call: Call) -> dict[str, Any]:
        uri = _require_text(call.params, "uri")
        if len(uri) <= MAX_URI_CHARACTERS:
            for resources in self._registry.resources:
                contents = await resources.read(uri, call)
                if contents is not None:
                    return {"contents": list(contents)}
            downstream = self._registry.downstream
            if downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call):
                result = await downstream.read_resource(uri, call)
                if result is not None:
                    return result
        uri = shorten(uri)
        raise UnknownResource(f"No resource {uri!r}; see resources/list and resources/templates/list", uri)

    def _list_prompts(self, call: Call) -> dict[str, Any]:
        def build() -> Iterable[Entry]:
            return (prompt.listing() for prompt in self._filter_open(self._registry.prompts.values(), call))

        return self._paginate(call, "prompts", self._get_view("prompts", call, build))

    async def _get_prompt(self, call: Call) -> dict[str, Any]:
        prompt = self._require_prompt(_require_text(call.params, "name"), call)
        arguments = call.params.get("arguments")
        return await prompt.get({} if arguments is None else arguments, call)

    async def _complete(self, call: Call) -> dict[str, Any]:
        reference, argument = _require_mapping(call.params, "ref"), _require_mapping(call.params, "argument")
        name = _require_text(argument, "name", "argument.")
        value = _require_text(argument, "value", "argument.", empty=True)
        kind = _require_text(reference, "type", "ref.")
        if kind == "ref/prompt":
            completion = await self._require_prompt(_require_text(reference, "name", "ref."), call).complete(
                name, value, call
            )
        elif kind == "ref/resource":
            completion = await self._complete_resource(_require_text(reference, "uri", "ref."), name, value, call)
        else:
            raise InvalidArguments([Problem("ref.type", "must be one of ref/prompt, ref/resource")])
        if isinstance(completion, Mapping):
            return dict(completion)
        shown = completion[:MAX_COMPLETIONS]
        return {"completion": {"values": shown, "total": len(completion), "hasMore": len(completion) > len(shown)}}

    async def _complete_resource(self, template: str, name: str, value: str, call: Call) -> Completion:
        context = call.params.get("context")
        others = context.get("arguments") if isinstance(context, Mapping) else None
        for resources in self._registry.resources:
            if any(entry["uriTemplate"] == template for entry in resources.templates()):
                return await resources.complete(
                    template, name, value, others if isinstance(others, Mapping) else {}, call
                )
        downstream = self._registry.downstream
        if downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call):
            result = await downstream.complete_template(template, call)
            if result is not None:
                return result
        template = shorten(template)
        raise UnknownResource(f"No resource template {template!r}; see resources/templates/list", template)

    def _require_prompt(self, name: str, call: Call) -> PromptEntry:
        prompt = self._registry.find_prompt(name)
        if prompt is None or prompt.toolset not in self.resolve_toolsets(call) or not prompt.is_open_to(call.caller):
            known = [prompt.name for prompt in self._filter_open(self._registry.prompts.values(), call)]
            raise UnknownPrompt(_format_unknown("prompt", name, known))
        return prompt

    def resolve_toolsets(self, call: Call) -> frozenset[str]:
        if call.toolsets is None:
            return self._toolsets
        unknown = sorted(call.toolsets - self._toolsets)
        if unknown:
            enabled = ", ".join(sorted(self._toolsets))
            raise InvalidArguments([Problem("toolsets", f"{', '.join(unknown)} not enabled; enabled are {enabled}")])
        return call.toolsets

    def _paginate(self, call: Call, name: str, entries: Sequence[Entry]) -> dict[str, Any]:
        start = _decode_cursor(call.params.get("cursor"), name)
        shown = entries[start : start + self._page_size]
        page: dict[str, Any] = {name: [entry if isinstance(entry, Mapping) else entry.listing(call) for entry in shown]}
        if start + self._page_size < len(entries):
            page["nextCursor"] = base64.urlsafe_b64encode(f"{name}:{start + self._page_size}".encode()).decode()
        return page


def _decode_cursor(cursor: object, name: str) -> int:
    if cursor is None:
        return 0
    try:
        kind, _, start = base64.urlsafe_b64decode(str(cursor)).decode().partition(":")
        if kind == name and start.isascii() and start.isdigit():
            return int(start)
    except (binascii.Error, UnicodeError, ValueError):
        pass  # reported below with the other invalid cursors
    raise InvalidArguments([Problem("cursor", "is not a cursor of this list")])


def _require_text(params: Mapping[str, Any], name: str, prefix: str = "", *, empty: bool = False) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not (value or empty):
        rule = "is required" if value is None else "must be a string" if not isinstance(value, str) else "is empty"
        raise InvalidArguments([Problem(prefix + name, rule)])
    return value


def _require_mapping(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = params.get(name)
    if not isinstance(value, Mapping):
        raise InvalidArguments([Problem(name, "is required" if value is None else "must be an object")])
    return value


def _format_unknown(kind: str, name: str, known: Sequence[str]) -> str:
    intended = _TOOLS_BY_INTENT.get(name.lower()) if kind == "tool" else None
    nearest = intended if intended in known else nearest_name(name, known[:MAX_SUGGESTION_CANDIDATES])
    hint = f"did you mean {nearest!r}?" if nearest else f"see {kind}s/list"
    return f"Unknown {kind} {shorten(name)!r}; {hint}"


_TOOLS_BY_INTENT = {
    **dict.fromkeys(("ask", "answer", "question", "rag", "rag_query"), "r2r_rag_query"),
    **dict.fromkeys(("search", "find", "lookup", "query", "grep", "search_docs"), "search_documentation"),
    **dict.fromkeys(("read", "get", "fetch", "open", "cat", "read_doc"), "get_document"),
}
"""Tools that models mean by names that aren't similar."""
