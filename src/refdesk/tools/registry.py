"""Registry of tools, prompts and resources, and the dispatcher of calls to them.

A tool is declared once; listing, validation, result shape, REST endpoint, help and docs derive from the declaration.
The tools and prompts of downstream servers are held by the fleet; the registry looks them up there.

The dispatcher is the innermost handler of a call. It knows MCP methods and wire shapes, but no transports.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_type_hints

import orjson
from pydantic import ValidationError

from refdesk.calls import (
    Annotations,
    Answer,
    Call,
    Event,
    ListChanged,
    Listener,
    RegistryEntry,
    ToolEntry,
    text_content,
    tool_answer,
)
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
from refdesk.tools.json_schema import (
    MAX_ARGUMENTS,
    Arguments,
    Result,
    add_choices,
    build_schema,
    list_arguments,
    list_result,
)
from refdesk.tools.lenient_arguments import validate_leniently
from refdesk.tools.prompts import Choices, Completion, Prompt, PromptEntry
from refdesk.validation import invalid_arguments, nearest_name, shorten

if TYPE_CHECKING:
    from refdesk.tools.proxied import Downstream

A = TypeVar("A", bound=Arguments)
E = TypeVar("E", bound=RegistryEntry)
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])

MAX_URI_CHARACTERS = 8000
"""Longer URIs are rejected without a lookup."""

MAX_COMPLETIONS = 100
"""The protocol's limit on completion values."""

MAX_SUGGESTION_CANDIDATES = 500
"""Names compared with a misspelled one; each takes some ten microseconds."""

HELD_META = "refdesk/held"
"""Metadata key of `tools/list` with the downstream tools that wait for approval."""

MAX_VIEWS = 256
"""Cached list views: one per kind of caller, of which there are few."""

DOWNSTREAM_TOOLSET = "downstream"
"""The toolset of downstream servers."""

ToolResult = Result | str | Mapping[str, Any]
"""Result of a handler: structured, plain text, or a whole result in its wire shape."""

Entry = Mapping[str, Any] | ToolEntry
"""A list entry, or the tool that computes it for each call."""


@dataclass(frozen=True)
class Tool(ToolEntry, Generic[A]):
    """Declaration of a tool."""

    name: str
    title: str
    description: str
    toolset: str
    arguments: type[A]
    handler: Callable[[A, Call], Awaitable[ToolResult]]
    result: type[Result] | None = None
    annotations: Annotations = field(default_factory=Annotations)
    choices: Mapping[str, Choices] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    """The published input schema, if it cannot be derived from the model."""
    seconds: float | Callable[[Call], float | None] | None = None
    """Timeout of a call, if it differs from the default."""
    meta: Mapping[str, Any] | None = None

    @property
    def is_live(self) -> bool:
        """Whether an argument has dynamic choices."""
        return bool(self.choices)

    def seconds_for(self, call: Call) -> float | None:
        """Return the declared timeout."""
        return self.seconds(call) if callable(self.seconds) else self.seconds

    def listing(self, call: Call) -> dict[str, Any]:
        """Return the tool's entry in `tools/list` for this caller."""
        if not self.choices:
            return self._listing
        values = {name: choices(call) for name, choices in self.choices.items()}
        return {**self._listing, "inputSchema": add_choices(self._listing["inputSchema"], values)}

    @cached_property
    def input_schema(self) -> Mapping[str, Any]:
        return self.schema if self.schema is not None else build_schema(self.arguments)

    @cached_property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The whole schema of the structured result."""
        return build_schema(self.result) if self.result is not None else None

    @cached_property
    def has_header_params(self) -> bool:
        """Whether it takes arguments from HTTP headers."""
        return b"x-mcp-header" in orjson.dumps(self.input_schema)

    @cached_property
    def _listing(self) -> dict[str, Any]:
        listing: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.schema if self.schema is not None else list_arguments(self.input_schema),
            "annotations": self.annotations.wire(),
        }
        if self.output_schema is not None:
            listing["outputSchema"] = list_result(self.output_schema)
        if self.meta:
            listing["_meta"] = dict(self.meta)
        return listing

    async def __call__(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Validate the arguments, run the handler and build the result."""
        result = await self.handler(self._validate_arguments(arguments, call), call)
        if isinstance(result, Result):
            structured = result.model_dump(mode="json", exclude_none=True)
            return tool_answer([text_content(result.readable())], structured=structured)
        return tool_answer([text_content(result)]) if isinstance(result, str) else dict(result)

    def _validate_arguments(self, arguments: dict[str, Any], call: Call) -> A:
        if len(arguments) > MAX_ARGUMENTS:
            raise InvalidArguments([Problem("arguments", f"must have at most {MAX_ARGUMENTS} members")])
        try:
            # Faster than `model_validate`, which rebuilds its keyword arguments on every call.
            validated = self._validator(arguments)
        except ValidationError:
            names = list(self.arguments.model_fields)
            try:
                validated = validate_leniently(self._validator, names, arguments)
            except ValidationError as error:
                raise invalid_arguments(error, names) from None
        for name, choices in self.choices.items():
            value = getattr(validated, name)
            if value is not None and value not in (values := choices(call)):
                raise InvalidArguments([Problem(name, f"must be one of {', '.join(values)}")])
        return validated

    @cached_property
    def _validator(self) -> Callable[[object], A]:
        validate: Callable[[object], A] = self.arguments.__pydantic_validator__.validate_python
        return validate


_DECLARED = "declared_tool"
"""Attribute of a method that has its declaration."""


def tool(title: str, description: str, *, choices: Mapping[str, str] | None = None, **more: Any) -> Callable[[H], H]:
    """Declare a method to be the tool of its name.

    `choices` are the names of methods that return the values of an argument, and `more` are further fields of `Tool`. A
    handler that returns its answer in wire shape names its `result` there.
    """

    def declare(handler: H) -> H:
        setattr(handler, _DECLARED, {"title": title, "description": description, "choices": choices or {}, **more})
        return handler

    return declare


def add_tools(registry: Registry, holder: object, toolset: str) -> None:
    """Register the declared tools of an object, in the order of its methods."""
    for name, method in vars(type(holder)).items():
        if (declared := getattr(method, _DECLARED, None)) is None:
            continue
        types = get_type_hints(method)
        has_result = isinstance(types["return"], type) and issubclass(types["return"], Result)
        choices = {argument: getattr(holder, values) for argument, values in declared["choices"].items()}
        fields = {"result": types["return"] if has_result else None, **declared, "choices": choices}
        handler = getattr(holder, name)
        registry.add_tool(Tool(name=name, toolset=toolset, arguments=types["arguments"], handler=handler, **fields))


class Resources(Protocol):
    """A resource provider for one URI scheme. By default, it lists nothing."""

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/list`."""
        return ()

    def templates(self) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `resources/templates/list`."""
        return ()

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """Return the contents of a URI, or None if it is not served here."""

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        """Return completion values for a template variable; `context` has the other variables."""
        return []


class Registry:
    """Own tools, prompts and resources, and a view of those of downstream servers. Own names take precedence."""

    def __init__(self) -> None:
        self.resources: list[Resources] = []
        self.downstream: Downstream | None = None
        """Tools, prompts and resources of downstream servers, consulted after our own."""
        self.methods: dict[str, Callable[[Call], Awaitable[dict[str, Any]]]] = {}
        """Handlers of methods beyond MCP."""
        self._own_tools: dict[str, Tool[Any]] = {}
        self._own_prompts: dict[str, Prompt] = {}
        self._listeners: list[Listener] = []

    @property
    def tools(self) -> Mapping[str, ToolEntry]:
        """A copy of the current tools by name. `find_tool` is faster for one tool."""
        downstream = self.downstream.tools if self.downstream is not None else {}
        return {**self._own_tools, **downstream, **self._own_tools}  # its own come first, and win

    @property
    def prompts(self) -> Mapping[str, PromptEntry]:
        """A copy of the current prompts by name."""
        downstream = self.downstream.prompts if self.downstream is not None else {}
        return {**self._own_prompts, **downstream, **self._own_prompts}

    def find_tool(self, name: str) -> ToolEntry | None:
        """Return the tool with this name or alias."""
        tool = self._own_tools.get(name)
        return self.downstream.find_tool(name) if tool is None and self.downstream is not None else tool

    def find_prompt(self, name: str) -> PromptEntry | None:
        """Return the prompt with this name or alias."""
        prompt = self._own_prompts.get(name)
        return self.downstream.find_prompt(name) if prompt is None and self.downstream is not None else prompt

    def is_own(self, name: str) -> bool:
        """Return whether a declared tool or prompt has this name."""
        return name in self._own_tools or name in self._own_prompts

    def add_tool(self, tool: Tool[Any]) -> None:
        """Register a tool; raise ValueError if the name is taken."""
        _add(tool, self._own_tools, "tool")
        self.publish(ListChanged("tools"))

    def remove_tool(self, name: str) -> None:
        """Remove a tool."""
        del self._own_tools[name]
        self.publish(ListChanged("tools"))

    def add_prompt(self, prompt: Prompt) -> None:
        """Register a prompt; raise ValueError if the name is taken."""
        _add(prompt, self._own_prompts, "prompt")
        self.publish(ListChanged("prompts"))

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        del self._own_prompts[name]
        self.publish(ListChanged("prompts"))

    def add_resources(self, resources: Resources) -> None:
        """Register a resource provider."""
        self.resources.append(resources)
        self.publish(ListChanged("resources"))

    def add_method(self, name: str, answer: Callable[[Call], Awaitable[dict[str, Any]]]) -> None:
        """Register a method beyond MCP."""
        if name in self.methods:
            raise ValueError(f"a method named {name!r} is registered already")
        self.methods[name] = answer

    def listen(self, listener: Listener) -> None:
        """Add a listener for changes."""
        self._listeners.append(listener)

    def publish(self, event: Event) -> None:
        """Notify all listeners."""
        for listener in self._listeners:
            listener(event)


def _add(entry: E, entries: dict[str, E], kind: str) -> None:
    if entry.name in entries:
        raise ValueError(f"a {kind} named {entry.name!r} is registered already")
    entries[entry.name] = entry


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

        page = self._paginate(call, "tools", self._get_view("tools", call, build))
        downstream = self._registry.downstream
        is_open = downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call)
        if downstream is not None and is_open and (held := downstream.list_held(call.caller)):
            page["_meta"] = {HELD_META: held}
        return page

    async def _call_tool(self, call: Call) -> dict[str, Any]:
        tool = call.tool
        # Resolving the toolsets also rejects unknown ones.
        if tool is None or tool.toolset not in self.resolve_toolsets(call) or not tool.is_open_to(call.caller):
            _require_text(call.params, "name")
            raise UnknownTool(self._explain_unknown_tool(call))
        try:
            return await tool(_read_arguments(call), call)
        except ToolFailure as failure:
            return build_failure(failure)

    def _explain_unknown_tool(self, call: Call) -> str:
        name, downstream, tools = call.target, self._registry.downstream, self.open_tools(call)
        if downstream is None or DOWNSTREAM_TOOLSET not in self.resolve_toolsets(call):
            return _format_unknown("tool", name, [tool.name for tool in tools])
        if held := downstream.find_held(name, call.caller):
            return (
                f"Tool {shorten(name)!r} is {held.reason}. It can be called once it's approved in the console, or with "
                f"`{shorten(held.approval, 300)}`"
            )
        return _format_unknown("tool", name, downstream.select_alike(name, tools))

    def _list_resources(self, call: Call) -> dict[str, Any]:
        own = chain.from_iterable(resources.listing(call) for resources in self._registry.resources)
        return self._paginate(call, "resources", [*own, *self._list_downstream("resources", call)])

    def _list_templates(self, call: Call) -> dict[str, Any]:
        own = chain.from_iterable(resources.templates() for resources in self._registry.resources)
        return self._paginate(call, "resourceTemplates", [*own, *self._list_downstream("templates", call)])

    def _list_downstream(self, kind: str, call: Call) -> list[Entry]:
        downstream = self._registry.downstream
        if downstream is None or DOWNSTREAM_TOOLSET not in self.resolve_toolsets(call):
            return []
        catalogue = downstream.fleet.catalogue
        items = catalogue.resources if kind == "resources" else catalogue.templates
        return self._get_view(kind, call, lambda: downstream.list_open(items, call.caller))

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
        prompt = await self._require_prompt(_require_text(call.params, "name"), call)
        return await prompt.get(_read_arguments(call), call)

    async def _complete(self, call: Call) -> dict[str, Any]:
        reference, argument = _require_mapping(call.params, "ref"), _require_mapping(call.params, "argument")
        name = _require_text(argument, "name", "argument.")
        value = _require_text(argument, "value", "argument.", empty=True)
        kind = _require_text(reference, "type", "ref.")
        if kind == "ref/prompt":
            prompt = await self._require_prompt(_require_text(reference, "name", "ref."), call)
            completion = await prompt.complete(name, value, call)
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

    async def _require_prompt(self, name: str, call: Call) -> PromptEntry:
        prompt, downstream = self._registry.find_prompt(name), self._registry.downstream
        if prompt is None and downstream is not None and DOWNSTREAM_TOOLSET in self.resolve_toolsets(call):
            await downstream.fleet.scan("prompts")
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


def build_failure(failure: ToolFailure) -> dict[str, Any]:
    """Return the result of a tool that has failed."""
    return {**tool_answer([text_content(failure.detail)], is_error=True), "_meta": {ERROR_META: failure.data}}


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


def _read_arguments(call: Call) -> dict[str, Any]:
    arguments = call.params.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise InvalidArguments([Problem("arguments", "must be an object")])
    return arguments or {}


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
