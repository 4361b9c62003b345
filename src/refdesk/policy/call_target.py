"""Policies about the target of a call: name resolution, and the deadline.

The tool is looked up once, for all later policies and the dispatcher. A call that takes longer than its tool allows is
cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refdesk.calls import Answer, Call, Handler, RegistryEntry, ToolEntry
from refdesk.errors import DeadlineExceeded
from refdesk.resilience.deadlines import Deadlines, Overdue


class ResolveNames:
    """Sets the tool of a call, and replaces aliases of tools and prompts by their listed names."""

    def __init__(
        self, find_tool: Callable[[str], ToolEntry | None], find_prompt: Callable[[str], RegistryEntry | None]
    ) -> None:
        self._find_tool = find_tool
        self._find_prompt = find_prompt

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        name = call.target
        if call.method == "tools/call":
            tool = self._find_tool(name)
            if tool is not None and tool.name != name:
                # An alias that the caller may not use must look like an unknown name.
                tool = tool if tool.is_open_to(call.caller) else None
                call = replace(call, params={**call.params, "name": tool.name}) if tool is not None else call
            call.tool = tool
        elif call.method == "prompts/get":
            prompt = self._find_prompt(name)
            if prompt is not None and prompt.name != name and prompt.is_open_to(call.caller):
                call = replace(call, params={**call.params, "name": prompt.name})
        return await proceed(call)


class Deadline:
    """Time limit for every call: the default, or the limit of its tool."""

    def __init__(self, seconds: float, tool_seconds: Callable[[Call], float | None] = lambda _: None) -> None:
        self._default = Deadlines(seconds)
        self._tool_seconds = tool_seconds
        self._by_seconds: dict[float, Deadlines] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        deadlines = self._get_deadlines(call)
        try:
            return await deadlines.run(proceed, call)
        except Overdue:
            raise DeadlineExceeded(f"The call took longer than {deadlines.seconds:g} s and was stopped") from None

    def _get_deadlines(self, call: Call) -> Deadlines:
        seconds = self._tool_seconds(call)
        if seconds is None:
            return self._default
        if seconds not in self._by_seconds:
            self._by_seconds[seconds] = Deadlines(seconds)
        return self._by_seconds[seconds]
