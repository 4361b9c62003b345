"""Declares tools as methods: name, arguments and result are those of the method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from refdesk.tools.json_schema import Result
from refdesk.tools.registry import Registry, Tool

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])

_DECLARED = "declared_tool"


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
