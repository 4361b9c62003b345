"""The innermost handler: whatever a client can ask for, answered from the registry.

It knows MCP's methods and their wire shapes, and nothing of how a message came in.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from refdesk.calls import Answer, Call, Event, ListChanged, text_content, tool_answer
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
from refdesk.tools.interfaces import Completion, OfferedPrompt, OfferedTool, Offering
from refdesk.tools.registry import Registry
from refdesk.validation import nearest_name, shortened

LONGEST_URI = 8000
"""Characters; longer ones are not even looked at."""

MAX_COMPLETIONS = 100
"""The protocol's own bound on one completion answer."""

MAX_LOOKED_AT = 500
"""Names that a misspelt one is compared with; each takes some ten microseconds."""

MAX_VIEWS = 256
"""Different views of the lists that are kept: as many as there are sorts of callers, and they are few."""

ELSEWHERE = "downstream"
"""The toolset of what other servers have."""

Entry = Mapping[str, Any] | OfferedTool
"""An entry of a list as it stands, or the tool that has to be asked for it each time."""


class Catalogue:
    """Answers calls from a registry; `page_size` bounds one page of any list."""

    def __init__(self, registry: Registry, toolsets: Iterable[str], page_size: int) -> None:
        self._registry = registry
        self._toolsets = frozenset(toolsets)
        self._page_size = page_size
        self._views: dict[Hashable, list[Entry]] = {}
        registry.listen(self._changed)
        self._methods: dict[str, Callable[[Call], Awaitable[dict[str, Any]]]] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    async def __call__(self, call: Call) -> Answer:
        """Answer one call."""
        method = self._methods.get(call.method) or self._registry.methods.get(call.method)
        if method is None:
            raise MethodNotFound(call.method)
        return Answer(await method(call))

    def tool(self, name: str) -> OfferedTool | None:
        """A tool of a toolset that is switched on."""
        tool = self._registry.tools.get(name)
        return tool if tool is not None and tool.toolset in self._toolsets else None

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """A tool's input schema, before live choices are filled in."""
        tool = self.tool(name)
        return tool.input_schema if tool is not None else None

    def seconds(self, call: Call) -> float | None:
        """How long a call may take, where what it is about says so itself."""
        offering = self._offering(call.method, call.target)
        if offering is not None:
            return offering.seconds_for(call)
        elsewhere = self._registry.elsewhere
        if elsewhere is not None and call.method == "resources/read":
            return elsewhere.seconds(call.target)
        reference = call.params.get("ref") if call.method == "completion/complete" else None
        return self._seconds_to_complete(reference, call) if isinstance(reference, Mapping) else None

    def is_plain(self, method: str, target: str) -> bool:
        """Whether a bare request and a bare answer are all that a call needs."""
        offering = self._offering(method, target)
        return offering is None or offering.is_plain

    def tools(self, call: Call) -> list[OfferedTool]:
        """The tools that this call is shown, in the order of their registration."""
        return [tool for tool in self.open_tools(call) if tool.is_listed]

    def open_tools(self, call: Call) -> list[OfferedTool]:
        """The tools that this call may be for, shown or not."""
        toolsets, caller = self.open_toolsets(call), call.caller
        tools = self._registry.tools.values()
        return [tool for tool in tools if tool.toolset in toolsets and tool.is_open_to(caller)]

    def _offering(self, method: str, name: str) -> Offering | None:
        if method == "tools/call":
            return self._registry.tools.get(name)
        return self._registry.prompts.get(name) if method == "prompts/get" else None

    def _seconds_to_complete(self, reference: Mapping[str, Any], call: Call) -> float | None:
        prompt = self._registry.prompts.get(str(reference.get("name")))
        if prompt is not None:
            return prompt.seconds_for(call)
        elsewhere = self._registry.elsewhere
        return elsewhere.seconds(str(reference.get("uri"))) if elsewhere is not None else None

    def _open_prompts(self, call: Call) -> list[OfferedPrompt]:
        toolsets, caller = self.open_toolsets(call), call.caller
        prompts = self._registry.prompts.values()
        return [prompt for prompt in prompts if prompt.toolset in toolsets and prompt.is_open_to(caller)]

    def _changed(self, event: Event) -> None:
        if isinstance(event, ListChanged):
            self._views.clear()

    def _view(self, kind: str, call: Call, assemble: Callable[[Call], Iterable[Entry]]) -> list[Entry]:
        """A list as it is for callers of this sort, assembled once for all of them until something changes."""
        key = kind, self.open_toolsets(call), call.caller.servers, call.caller.tenant
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            view = self._views[key] = list(assemble(call))
        return view

    async def _list_tools(self, call: Call) -> dict[str, Any]:
        return self._page(call, "tools", self._view("tools", call, self._tool_entries))

    def _tool_entries(self, call: Call) -> Iterable[Entry]:
        return (tool if tool.is_live else tool.listing(call) for tool in self.tools(call))

    async def _call_tool(self, call: Call) -> dict[str, Any]:
        tool = self.tool(_text(call.params, "name"))
        if tool is None or not self._is_open(tool, call):
            raise UnknownTool(_unknown("tool", call.target, [tool.name for tool in self.open_tools(call)]))
        try:
            arguments = call.params.get("arguments")
            return await tool({} if arguments is None else arguments, call)
        except ToolFailure as failure:
            return {**tool_answer([text_content(failure.detail)], is_error=True), "_meta": {ERROR_META: failure.data}}

    def _is_open(self, offering: Offering, call: Call) -> bool:
        # Toolsets that are asked for are looked at even where they do not matter: unknown ones are told of.
        return (call.toolsets is None or offering.toolset in self.open_toolsets(call)) and offering.is_open_to(
            call.caller
        )

    async def _list_resources(self, call: Call) -> dict[str, Any]:
        listings: list[Entry] = [
            listing for resources in self._registry.resources for listing in resources.listing(call)
        ]
        elsewhere = self._registry.elsewhere
        if elsewhere is not None and ELSEWHERE in self.open_toolsets(call):
            listings += self._view("resources", call, lambda call: elsewhere.listing(call.caller))
        return self._page(call, "resources", listings)

    async def _list_templates(self, call: Call) -> dict[str, Any]:
        templates: list[Entry] = [
            template for resources in self._registry.resources for template in resources.templates()
        ]
        elsewhere = self._registry.elsewhere
        if elsewhere is not None and ELSEWHERE in self.open_toolsets(call):
            templates += self._view("templates", call, lambda call: elsewhere.templates(call.caller))
        return self._page(call, "resourceTemplates", templates)

    async def _read_resource(self, call: Call) -> dict[str, Any]:
        uri = _text(call.params, "uri")
        if len(uri) <= LONGEST_URI:
            for resources in self._registry.resources:
                contents = await resources.read(uri, call)
                if contents is not None:
                    return {"contents": list(contents)}
            elsewhere = self._registry.elsewhere
            if elsewhere is not None and ELSEWHERE in self.open_toolsets(call):
                result = await elsewhere.read(uri, call)
                if result is not None:
                    return result
        uri = shortened(uri)
        detail = f"No resource {uri!r}; resources/list and resources/templates/list say what there is"
        raise UnknownResource(detail, uri)

    async def _list_prompts(self, call: Call) -> dict[str, Any]:
        return self._page(call, "prompts", self._view("prompts", call, self._prompt_entries))

    def _prompt_entries(self, call: Call) -> Iterable[Entry]:
        return (prompt.listing() for prompt in self._open_prompts(call))

    async def _get_prompt(self, call: Call) -> dict[str, Any]:
        prompt = self._prompt(_text(call.params, "name"), call)
        arguments = call.params.get("arguments")
        return await prompt.get({} if arguments is None else arguments, call)

    async def _complete(self, call: Call) -> dict[str, Any]:
        reference, argument = _mapping(call.params, "ref"), _mapping(call.params, "argument")
        name, value = _text(argument, "name", "argument."), _text(argument, "value", "argument.", empty=True)
        kind = _text(reference, "type", "ref.")
        if kind == "ref/prompt":
            completion = await self._prompt(_text(reference, "name", "ref."), call).complete(name, value, call)
        elif kind == "ref/resource":
            completion = await self._complete_resource(_text(reference, "uri", "ref."), name, value, call)
        else:
            raise InvalidArguments([Problem("ref.type", "must be one of ref/prompt, ref/resource")])
        if isinstance(completion, Mapping):
            return dict(completion)
        shown = completion[:MAX_COMPLETIONS]
        return {"completion": {"values": shown, "total": len(completion), "hasMore": len(completion) > len(shown)}}

    async def _complete_resource(self, template: str, name: str, value: str, call: Call) -> Completion:
        for resources in self._registry.resources:
            if any(entry["uriTemplate"] == template for entry in resources.templates()):
                return await resources.complete(template, name, value, _given(call), call)
        elsewhere = self._registry.elsewhere
        if elsewhere is not None and ELSEWHERE in self.open_toolsets(call):
            result = await elsewhere.complete(template, call)
            if result is not None:
                return result
        template = shortened(template)
        detail = f"No resource template {template!r}; resources/templates/list says what there is"
        raise UnknownResource(detail, template)

    def _prompt(self, name: str, call: Call) -> OfferedPrompt:
        prompt = self._registry.prompts.get(name)
        if prompt is None or prompt.toolset not in self.open_toolsets(call) or not prompt.is_open_to(call.caller):
            raise UnknownPrompt(_unknown("prompt", name, [prompt.name for prompt in self._open_prompts(call)]))
        return prompt

    def open_toolsets(self, call: Call) -> frozenset[str]:
        if call.toolsets is None:
            return self._toolsets
        unknown = sorted(call.toolsets - self._toolsets)
        if unknown:
            switched_on = ", ".join(sorted(self._toolsets))
            raise InvalidArguments([Problem("toolsets", f"{', '.join(unknown)} not switched on; on are {switched_on}")])
        return call.toolsets

    def _page(self, call: Call, name: str, entries: Sequence[Entry]) -> dict[str, Any]:
        start = _decode_cursor(call.params.get("cursor"), name)
        shown = entries[start : start + self._page_size]
        page: dict[str, Any] = {name: [entry if isinstance(entry, Mapping) else entry.listing(call) for entry in shown]}
        if start + self._page_size < len(entries):
            page["nextCursor"] = _encode_cursor(name, start + self._page_size)
        return page


def _encode_cursor(name: str, start: int) -> str:
    return base64.urlsafe_b64encode(f"{name}:{start}".encode()).decode()


def _decode_cursor(cursor: object, name: str) -> int:
    if cursor is None:
        return 0
    try:
        kind, _, start = base64.urlsafe_b64decode(str(cursor)).decode().partition(":")
        if kind == name and start.isascii() and start.isdigit():
            return int(start)
    except (binascii.Error, UnicodeError, ValueError):
        pass  # told below, with every other way of being wrong
    raise InvalidArguments([Problem("cursor", "is not one that this list gave")])


def _given(call: Call) -> Mapping[str, str]:
    """The other arguments of what is completed, as far as they are known."""
    context = call.params.get("context")
    given = context.get("arguments") if isinstance(context, Mapping) else None
    return given if isinstance(given, Mapping) else {}


def _text(params: Mapping[str, Any], name: str, prefix: str = "", *, empty: bool = False) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not (value or empty):
        rule = "is required" if value is None else "must be a string" if not isinstance(value, str) else "is empty"
        raise InvalidArguments([Problem(prefix + name, rule)])
    return value


def _mapping(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = params.get(name)
    if not isinstance(value, Mapping):
        raise InvalidArguments([Problem(name, "is required" if value is None else "must be an object")])
    return value


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    nearest = nearest_name(name, known[:MAX_LOOKED_AT])
    hint = f"did you mean {nearest!r}?" if nearest else f"{kind}s/list says what there is"
    return f"Unknown {kind} {shortened(name)!r}; {hint}"
