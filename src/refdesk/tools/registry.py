"""A tool is declared once; its listing, validation, answer shape, REST endpoint, help and docs page come from that.

The registry also holds resources and prompts, and tells listeners when any of the three lists changes. What other
servers offer stands beside what is declared here, replaced as a whole whenever it changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import orjson
from pydantic import ValidationError

from refdesk.calls import Call, Caller, Event, ListChanged, Listener, text_content, tool_answer
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.interfaces import Completion, Elsewhere, OfferedPrompt, OfferedTool, Offering, Resources
from refdesk.tools.schema import Arguments, Result, published_schema, with_choices
from refdesk.validation import invalid_arguments, shortened

A = TypeVar("A", bound=Arguments)

MAX_ARGUMENTS = 100
"""No tool has as many; to look through hundreds of thousands that somebody made up would take seconds."""

ToolResult = Result | str | Mapping[str, Any]
"""What a handler returns: a structured result, plain text, or a whole answer in its wire shape."""

Choices = Callable[[Call], Sequence[str]]
"""The values an argument can take now, for this caller."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a client may assume before it lets a model call the tool."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    def wire(self) -> dict[str, bool]:
        """The hints in their wire spelling."""
        return {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
            "openWorldHint": self.open_world,
        }


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool, declared."""

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
    """The input schema as it is to be published, where the model alone cannot say it."""
    talks: bool = False
    """Whether it reports to or asks the client while it works, and so needs a connection that can carry that."""
    seconds: float | None = None
    """How long a call may take, where that is not what holds for all."""
    meta: Mapping[str, Any] | None = None
    is_listed: ClassVar[bool] = True

    @property
    def is_live(self) -> bool:
        """Whether some argument has choices that change."""
        return bool(self.choices)

    def seconds_for(self, call: Call) -> float | None:
        """The same for every call."""
        return self.seconds

    def is_open_to(self, caller: Caller) -> bool:
        """What is declared here is for everybody; toolsets and roles narrow it."""
        return True

    def listing(self, call: Call) -> dict[str, Any]:
        """The tool's entry in `tools/list` for this caller."""
        if not self.choices:
            return self._listing
        values = {name: choices(call) for name, choices in self.choices.items()}
        return {**self._listing, "inputSchema": with_choices(self.input_schema, values)}

    @cached_property
    def input_schema(self) -> Mapping[str, Any]:
        """The schema of the arguments, before live choices are filled in."""
        return self.schema if self.schema is not None else published_schema(self.arguments)

    @cached_property
    def is_plain(self) -> bool:
        """Whether a bare request and a bare answer are all it needs: it neither talks nor reads headers."""
        return not self.talks and b"x-mcp-header" not in orjson.dumps(self.input_schema)

    @cached_property
    def _listing(self) -> dict[str, Any]:
        listing: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": self.annotations.wire(),
        }
        if self.result is not None:
            listing["outputSchema"] = published_schema(self.result)
        if self.meta:
            listing["_meta"] = dict(self.meta)
        return listing

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """Validate, run, and shape the answer."""
        result = await self.handler(self._validated(arguments, call), call)
        if isinstance(result, Result):
            structured = result.model_dump(mode="json", exclude_none=True)
            return tool_answer([text_content(result.readable())], structured=structured)
        if isinstance(result, str):
            return tool_answer([text_content(result)])
        return dict(result)

    def _validated(self, arguments: object, call: Call) -> A:
        if not isinstance(arguments, dict):
            raise InvalidArguments([Problem("arguments", "must be an object")])
        if len(arguments) > MAX_ARGUMENTS:
            raise InvalidArguments([Problem("arguments", f"must have at most {MAX_ARGUMENTS} members")])
        try:
            # The compiled validator itself: `model_validate` would rebuild its keyword arguments on every call.
            validated = self._validate(arguments)
        except ValidationError as error:
            raise invalid_arguments(error, list(self.arguments.model_fields)) from None
        for name, choices in self.choices.items():
            value = getattr(validated, name)
            if value is not None and value not in (values := choices(call)):
                raise InvalidArguments([Problem(name, f"must be one of {', '.join(values)}")])
        return validated

    @cached_property
    def _validate(self) -> Callable[[object], A]:
        validate: Callable[[object], A] = self.arguments.__pydantic_validator__.validate_python
        return validate


@dataclass(frozen=True)
class PromptArgument:
    """One argument of a prompt."""

    name: str
    description: str
    required: bool = False
    choices: Choices | None = None


@dataclass(frozen=True)
class Prompt:
    """A message prepared for a common job."""

    name: str
    title: str
    description: str
    toolset: str
    arguments: Sequence[PromptArgument]
    render: Callable[[Mapping[str, str], Call], Awaitable[Mapping[str, Any]]]
    talks: bool = False
    """As a tool's."""

    @property
    def is_plain(self) -> bool:
        """As a tool's."""
        return not self.talks

    def is_open_to(self, caller: Caller) -> bool:
        """As a tool's."""
        return True

    def seconds_for(self, call: Call) -> float | None:
        """What holds for all."""
        return None

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Check the arguments and make the messages."""
        return dict(await self.render(self._checked(arguments), call))

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """The choices that begin with what is there."""
        for argument in self.arguments:
            if argument.name == name:
                choices = argument.choices(call) if argument.choices else ()
                return [choice for choice in choices if choice.startswith(value)]
        raise InvalidArguments([Problem("argument.name", f"{self.name} has no argument {name!r}")])

    def _checked(self, given: object) -> Mapping[str, str]:
        if not isinstance(given, Mapping):
            raise InvalidArguments([Problem("arguments", "must be an object")])
        if len(given) > MAX_ARGUMENTS:
            raise InvalidArguments([Problem("arguments", f"must have at most {MAX_ARGUMENTS} members")])
        known = {argument.name for argument in self.arguments}
        required = [argument.name for argument in self.arguments if argument.required]
        problems = [Problem(name, "is required") for name in required if not given.get(name)]
        problems += [Problem(shortened(str(name)), "unknown argument") for name in given if name not in known]
        problems += [Problem(name, "must be a string") for name in known if not isinstance(given.get(name, ""), str)]
        if problems:
            raise InvalidArguments(problems)
        return given

    def listing(self) -> dict[str, Any]:
        """The prompt's entry in `prompts/list`."""
        arguments = [
            {"name": argument.name, "description": argument.description, "required": argument.required}
            for argument in self.arguments
        ]
        return {"name": self.name, "title": self.title, "description": self.description, "arguments": arguments}


class Registry:
    """All that this desk offers, by name. What is declared here has its name, whatever other servers call theirs."""

    def __init__(self) -> None:
        self.tools: dict[str, OfferedTool] = {}
        self.prompts: dict[str, OfferedPrompt] = {}
        self.resources: list[Resources] = []
        self.elsewhere: Elsewhere | None = None
        """The resources of other servers, looked at after our own."""
        self.methods: dict[str, Callable[[Call], Awaitable[dict[str, Any]]]] = {}
        """What other services can ask for besides what MCP has."""
        self._listeners: list[Listener] = []
        self._others_tools: dict[str, OfferedTool] = {}
        self._others_prompts: dict[str, OfferedPrompt] = {}

    def is_own(self, name: str) -> bool:
        """Whether a tool or prompt of this name is declared here."""
        return (name in self.tools and name not in self._others_tools) or (
            name in self.prompts and name not in self._others_prompts
        )

    def add_tool(self, tool: Tool[Any]) -> None:
        """Offer a tool; a name can be taken only once."""
        _add(tool, self.tools, self._others_tools, "tool")
        self.publish(ListChanged("tools"))

    def remove_tool(self, name: str) -> None:
        """Withdraw a tool."""
        del self.tools[name]
        self.publish(ListChanged("tools"))

    def replace_others_tools(self, tools: Iterable[OfferedTool]) -> None:
        """Offer these, and no longer those that other servers had before; told once, and not where none is listed."""
        before = list(self._others_tools.values())
        _replace(tools, self.tools, self._others_tools)
        if any(tool.is_listed for tool in (*before, *self._others_tools.values())):
            self.publish(ListChanged("tools"))

    def add_prompt(self, prompt: Prompt) -> None:
        """Offer a prompt; a name can be taken only once."""
        _add(prompt, self.prompts, self._others_prompts, "prompt")
        self.publish(ListChanged("prompts"))

    def remove_prompt(self, name: str) -> None:
        """Withdraw a prompt."""
        del self.prompts[name]
        self.publish(ListChanged("prompts"))

    def replace_others_prompts(self, prompts: Iterable[OfferedPrompt]) -> None:
        """As with tools."""
        _replace(prompts, self.prompts, self._others_prompts)
        self.publish(ListChanged("prompts"))

    def add_resources(self, resources: Resources) -> None:
        """Offer a family of resources."""
        self.resources.append(resources)
        self.publish(ListChanged("resources"))

    def add_method(self, name: str, answer: Callable[[Call], Awaitable[dict[str, Any]]]) -> None:
        """Answer calls of a method that MCP does not have."""
        if name in self.methods:
            raise ValueError(f"a method named {name!r} is registered already")
        self.methods[name] = answer

    def listen(self, listener: Listener) -> None:
        """Be told of every change from now on."""
        self._listeners.append(listener)

    def publish(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            listener(event)


O = TypeVar("O", bound=Offering)  # noqa: E741 - an offering


def _add(offering: O, all: dict[str, O], others: dict[str, O], kind: str) -> None:
    if offering.name in all and others.pop(offering.name, None) is None:
        raise ValueError(f"a {kind} named {offering.name!r} is registered already")
    all[offering.name] = offering


def _replace(offerings: Iterable[O], all: dict[str, O], others: dict[str, O]) -> None:
    """In place: policies hold on to the whole."""
    for name in others:
        del all[name]
    others.clear()
    others.update((offering.name, offering) for offering in offerings if offering.name not in all)
    all.update(others)
