"""Registry of tools, resources and prompts.

A tool is declared once; listing, validation, result shape, REST endpoint, help and docs derive from the declaration.
The tools and prompts of downstream servers are held by the fleet; the registry looks them up there. Listeners are
notified of every change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import orjson
from pydantic import ValidationError

from refdesk.calls import (
    Call,
    Caller,
    Event,
    ListChanged,
    Listener,
    RegistryEntry,
    ToolEntry,
    text_content,
    tool_answer,
)
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.json_schema import (
    Arguments,
    Result,
    add_choices,
    build_schema,
    list_arguments,
    list_result,
    validate_leniently,
)
from refdesk.validation import invalid_arguments, shorten

if TYPE_CHECKING:
    from refdesk.tools.proxied import Downstream

A = TypeVar("A", bound=Arguments)

MAX_ARGUMENTS = 100
"""No tool has as many; validating hundreds of thousands of unknown names would take seconds."""

ToolResult = Result | str | Mapping[str, Any]
"""Result of a handler: structured, plain text, or a whole result in its wire shape."""

Completion = Sequence[str] | Mapping[str, Any]
"""Completion values, or the whole result in its wire shape."""

Choices = Callable[[Call], Sequence[str]]
"""Returns the current values of an argument for a caller."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """A tool's behaviour hints for clients."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    def wire(self) -> dict[str, bool]:
        """Return the hints in their wire shape, without the protocol's defaults and those implied by another."""
        if self.read_only:
            hints = {"readOnlyHint": True}
        else:
            hints = {"destructiveHint": False} if not self.destructive else {}
            hints |= {"idempotentHint": True} if self.idempotent else {}
        return hints if self.open_world else {**hints, "openWorldHint": False}


@dataclass(frozen=True)
class Tool(Generic[A]):
    """Declaration of a tool."""

    name: str
    title: str
    description: str
    toolset: str
    arguments: type[A]
    handler: Callable[[A, Call], Awaitable[ToolResult]]
    result: type[Result] | None = None
    annotations: Annotations = Annotations()
    choices: Mapping[str, Choices] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    """The published input schema, if it cannot be derived from the model."""
    seconds: float | None = None
    """Timeout of a call, if it differs from the default."""
    meta: Mapping[str, Any] | None = None
    is_listed: ClassVar[bool] = True

    @property
    def is_live(self) -> bool:
        """Whether an argument has dynamic choices."""
        return bool(self.choices)

    def seconds_for(self, call: Call) -> float | None:
        """Return the declared timeout."""
        return self.seconds

    def is_open_to(self, caller: Caller) -> bool:
        """Return True: access to declared tools is decided by toolsets and roles."""
        return True

    def listing(self, call: Call) -> dict[str, Any]:
        """Return the tool's entry in `tools/list` for this caller."""
        if not self.choices:
            return self._listing
        values = {name: choices(call) for name, choices in self.choices.items()}
        return {**self._listing, "inputSchema": add_choices(self._listing["inputSchema"], values)}

    @cached_property
    def input_schema(self) -> Mapping[str, Any]:
        """The whole schema of the arguments, without dynamic choices."""
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

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """Validate the arguments, run the handler and build the result."""
        result = await self.handler(self._validate_arguments(arguments, call), call)
        if isinstance(result, Result):
            structured = result.model_dump(mode="json", exclude_none=True)
            return tool_answer([text_content(result.readable())], structured=structured)
        if isinstance(result, str):
            return tool_answer([text_content(result)])
        return dict(result)

    def _validate_arguments(self, arguments: object, call: Call) -> A:
        if not isinstance(arguments, dict):
            raise InvalidArguments([Problem("arguments", "must be an object")])
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


@dataclass(frozen=True)
class PromptArgument:
    """An argument of a prompt."""

    name: str
    description: str
    required: bool = False
    choices: Choices | None = None


@dataclass(frozen=True)
class Prompt:
    """Declaration of a prompt."""

    name: str
    title: str
    description: str
    toolset: str
    arguments: Sequence[PromptArgument]
    render: Callable[[Mapping[str, str], Call], Awaitable[Mapping[str, Any]]]

    def is_open_to(self, caller: Caller) -> bool:
        """Return True, as for tools."""
        return True

    def seconds_for(self, call: Call) -> float | None:
        """Return None, for the default timeout."""
        return None

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Validate the arguments and render the messages."""
        return dict(await self.render(self._check_arguments(arguments), call))

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return the choices that start with the value."""
        for argument in self.arguments:
            if argument.name == name:
                choices = argument.choices(call) if argument.choices else ()
                return [choice for choice in choices if choice.startswith(value)]
        raise InvalidArguments([Problem("argument.name", f"{self.name} has no argument {name!r}")])

    def _check_arguments(self, arguments: object) -> Mapping[str, str]:
        if not isinstance(arguments, Mapping):
            raise InvalidArguments([Problem("arguments", "must be an object")])
        if len(arguments) > MAX_ARGUMENTS:
            raise InvalidArguments([Problem("arguments", f"must have at most {MAX_ARGUMENTS} members")])
        known = {argument.name for argument in self.arguments}
        required = [argument.name for argument in self.arguments if argument.required]
        problems = [Problem(name, "is required") for name in required if not arguments.get(name)]
        problems += [Problem(shorten(str(name)), "unknown argument") for name in arguments if name not in known]
        problems += [
            Problem(name, "must be a string") for name in known if not isinstance(arguments.get(name, ""), str)
        ]
        if problems:
            raise InvalidArguments(problems)
        return arguments

    def listing(self) -> dict[str, Any]:
        """Return the prompt's entry in `prompts/list`."""
        arguments = [
            {"name": argument.name, "description": argument.description, "required": argument.required}
            for argument in self.arguments
        ]
        return {"name": self.name, "title": self.title, "description": self.description, "arguments": arguments}


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
        return _merge(self._own_tools, self.downstream.tools if self.downstream is not None else {})

    @property
    def prompts(self) -> Mapping[str, PromptEntry]:
        """A copy of the current prompts by name."""
        return _merge(self._own_prompts, self.downstream.prompts if self.downstream is not None else {})

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


E = TypeVar("E", bound=RegistryEntry)


def _add(entry: E, entries: dict[str, E], kind: str) -> None:
    if entry.name in entries:
        raise ValueError(f"a {kind} named {entry.name!r} is registered already")
    entries[entry.name] = entry


def _merge(own: Mapping[str, E], downstream: Mapping[str, E]) -> dict[str, E]:
    return {**own, **{name: entry for name, entry in downstream.items() if name not in own}}
