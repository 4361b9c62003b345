"""The innermost handler: whatever a client can ask for, answered from the registry.

It knows MCP's methods and their wire shapes, and nothing of how a message came in.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from refdesk.calls import Answer, Call, text_content, tool_answer
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
from refdesk.problems import nearest_name, shortened
from refdesk.tools.registry import MAX_ARGUMENTS, Prompt, Registry, Tool

LONGEST_URI = 8000
"""Characters; longer ones are not even looked at."""

MAX_COMPLETIONS = 100
"""The protocol's own bound on one completion answer."""


class Catalogue:
    """Answers calls from a registry; `page_size` bounds one page of any list."""

    def __init__(self, registry: Registry, toolsets: Iterable[str], page_size: int) -> None:
        self._registry = registry
        self._toolsets = frozenset(toolsets)
        self._page_size = page_size
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

    def tool(self, name: str) -> Tool[Any] | None:
        """A tool of a toolset that is switched on."""
        tool = self._registry.tools.get(name)
        return tool if tool is not None and tool.toolset in self._toolsets else None

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """A tool's input schema, before live choices are filled in."""
        tool = self.tool(name)
        return tool.input_schema if tool is not None else None

    def seconds(self, call: Call) -> float | None:
        """How long a call may take, where its tool says so itself."""
        tool = self._registry.tools.get(call.target) if call.method == "tools/call" else None
        return tool.seconds if tool is not None else None

    def is_plain(self, method: str, target: str) -> bool:
        """Whether a bare request and a bare answer are all that a call needs."""
        offered: Mapping[str, Tool[Any] | Prompt] = {}
        if method == "tools/call":
            offered = self._registry.tools
        elif method == "prompts/get":
            offered = self._registry.prompts
        return target not in offered or offered[target].is_plain

    def tools(self, call: Call) -> list[Tool[Any]]:
        """The tools open to this call, in the order of their registration."""
        toolsets = self._open_toolsets(call)
        return [tool for tool in self._registry.tools.values() if tool.toolset in toolsets]

    async def _list_tools(self, call: Call) -> dict[str, Any]:
        return self._page(call, "tools", [tool.listing(call) for tool in self.tools(call)])

    async def _call_tool(self, call: Call) -> dict[str, Any]:
        tool = self.tool(_text(call.params, "name"))
        if tool is None or (call.toolsets is not None and tool.toolset not in self._open_toolsets(call)):
            raise UnknownTool(_unknown("tool", call.target, [tool.name for tool in self.tools(call)]))
        try:
            arguments = call.params.get("arguments")
            return await tool({} if arguments is None else arguments, call)
        except ToolFailure as failure:
            return {**tool_answer([text_content(failure.detail)], is_error=True), "_meta": {ERROR_META: failure.data}}

    async def _list_resources(self, call: Call) -> dict[str, Any]:
        listings = (listing for resources in self._registry.resources for listing in resources.listing(call))
        return self._page(call, "resources", list(listings))

    async def _list_templates(self, call: Call) -> dict[str, Any]:
        templates = (template for resources in self._registry.resources for template in resources.templates())
        return self._page(call, "resourceTemplates", list(templates))

    async def _read_resource(self, call: Call) -> dict[str, Any]:
        uri = _text(call.params, "uri")
        for resources in self._registry.resources if len(uri) <= LONGEST_URI else ():
            contents = await resources.read(uri, call)
            if contents is not None:
                return {"contents": list(contents)}
        uri = shortened(uri)
        detail = f"No resource {uri!r}; resources/list and resources/templates/list say what there is"
        raise UnknownResource(detail, uri)

    async def _list_prompts(self, call: Call) -> dict[str, Any]:
        toolsets = self._open_toolsets(call)
        prompts = (prompt for prompt in self._registry.prompts.values() if prompt.toolset in toolsets)
        return self._page(call, "prompts", [prompt.listing() for prompt in prompts])

    async def _get_prompt(self, call: Call) -> dict[str, Any]:
        prompt = self._prompt(_text(call.params, "name"), call)
        arguments = call.params.get("arguments")
        given = _checked_prompt_arguments(prompt, {} if arguments is None else arguments)
        return dict(await prompt.render(given, call))

    async def _complete(self, call: Call) -> dict[str, Any]:
        reference, argument = _mapping(call.params, "ref"), _mapping(call.params, "argument")
        name, value = _text(argument, "name", "argument."), _text(argument, "value", "argument.", empty=True)
        context = call.params.get("context") or {}
        given = context.get("arguments") if isinstance(context, Mapping) else None
        given = given if isinstance(given, Mapping) else {}
        kind = _text(reference, "type", "ref.")
        if kind == "ref/prompt":
            values = self._complete_prompt(_text(reference, "name", "ref."), name, value, call)
        elif kind == "ref/resource":
            values = await self._complete_resource(_text(reference, "uri", "ref."), name, value, given, call)
        else:
            raise InvalidArguments([Problem("ref.type", "must be one of ref/prompt, ref/resource")])
        shown = values[:MAX_COMPLETIONS]
        return {"completion": {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}}

    def _complete_prompt(self, prompt_name: str, name: str, value: str, call: Call) -> list[str]:
        prompt = self._prompt(prompt_name, call)
        for argument in prompt.arguments:
            if argument.name == name:
                choices = argument.choices(call) if argument.choices else ()
                return [choice for choice in choices if choice.startswith(value)]
        raise InvalidArguments([Problem("argument.name", f"{prompt_name} has no argument {name!r}")])

    async def _complete_resource(
        self, template: str, name: str, value: str, given: Mapping[str, str], call: Call
    ) -> list[str]:
        for resources in self._registry.resources:
            if any(entry["uriTemplate"] == template for entry in resources.templates()):
                return await resources.complete(template, name, value, given, call)
        template = shortened(template)
        detail = f"No resource template {template!r}; resources/templates/list says what there is"
        raise UnknownResource(detail, template)

    def _prompt(self, name: str, call: Call) -> Prompt:
        prompt = self._registry.prompts.get(name)
        toolsets = self._open_toolsets(call)
        if prompt is None or prompt.toolset not in toolsets:
            known = [prompt.name for prompt in self._registry.prompts.values() if prompt.toolset in toolsets]
            raise UnknownPrompt(_unknown("prompt", name, known))
        return prompt

    def _open_toolsets(self, call: Call) -> frozenset[str]:
        if call.toolsets is None:
            return self._toolsets
        unknown = sorted(call.toolsets - self._toolsets)
        if unknown:
            switched_on = ", ".join(sorted(self._toolsets))
            raise InvalidArguments([Problem("toolsets", f"{', '.join(unknown)} not switched on; on are {switched_on}")])
        return call.toolsets

    def _page(self, call: Call, name: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        start = _decode_cursor(call.params.get("cursor"), name)
        page: dict[str, Any] = {name: list(entries[start : start + self._page_size])}
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


def _checked_prompt_arguments(prompt: Prompt, given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidArguments([Problem("arguments", "must be an object")])
    if len(given) > MAX_ARGUMENTS:
        raise InvalidArguments([Problem("arguments", f"must have at most {MAX_ARGUMENTS} members")])
    known = {argument.name for argument in prompt.arguments}
    problems = [
        Problem(argument.name, "is required")
        for argument in prompt.arguments
        if argument.required and not given.get(argument.name)
    ]
    problems += [Problem(shortened(str(name)), "unknown argument") for name in given if name not in known]
    problems += [Problem(name, "must be a string") for name in known if not isinstance(given.get(name, ""), str)]
    if problems:
        raise InvalidArguments(problems)
    return given


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
    nearest = nearest_name(name, known)
    hint = f"did you mean {nearest!r}?" if nearest else f"{kind}s/list says what there is"
    return f"Unknown {kind} {shortened(name)!r}; {hint}"
