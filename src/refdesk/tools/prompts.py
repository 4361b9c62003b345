"""Prompts: their declaration, and what the registry knows of every prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.calls import Call, RegistryEntry, text_content
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.json_schema import MAX_ARGUMENTS
from refdesk.validation import shorten

Completion = Sequence[str] | Mapping[str, Any]
"""Completion values, or the whole result in its wire shape."""

Choices = Callable[[Call], Sequence[str]]
"""Returns the current values of an argument for a caller."""


@dataclass(frozen=True)
class PromptArgument:
    """An argument of a prompt."""

    name: str
    description: str
    required: bool = False
    choices: Choices | None = None


class PromptEntry(RegistryEntry):
    """A prompt in the registry."""

    @abstractmethod
    def listing(self) -> dict[str, Any]:
        """Return its entry in `prompts/list`."""

    @abstractmethod
    async def get(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Return its messages in their wire shape."""

    @abstractmethod
    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return completion values for one of its arguments."""


@dataclass(frozen=True)
class Prompt(PromptEntry):
    """Declaration of a prompt."""

    name: str
    title: str
    description: str
    toolset: str
    arguments: Sequence[PromptArgument]
    render: Callable[[Mapping[str, str], Call], Awaitable[str | Mapping[str, Any]]]
    """Returns the user's message, or a whole result in its wire shape."""

    async def get(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Validate the arguments and render the messages."""
        rendered = await self.render(self._check_arguments(arguments), call)
        if isinstance(rendered, str):
            return {"messages": [{"role": "user", "content": text_content(rendered)}]}
        return dict(rendered)

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return the choices that start with the value."""
        for argument in self.arguments:
            if argument.name == name:
                choices = argument.choices(call) if argument.choices else ()
                return [choice for choice in choices if choice.startswith(value)]
        raise InvalidArguments([Problem("argument.name", f"{self.name} has no argument {name!r}")])

    def _check_arguments(self, arguments: dict[str, Any]) -> Mapping[str, str]:
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
