"""Name resolution policy: looks up the tool of a call once, for all later policies and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refdesk.calls import Answer, Call, Handler, RegistryEntry, ToolEntry


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
                call = _rename(call, tool) if tool is not None else call
            call.tool = tool
        elif call.method == "prompts/get":
            prompt = self._find_prompt(name)
            if prompt is not None and prompt.name != name and prompt.is_open_to(call.caller):
                call = _rename(call, prompt)
        return await proceed(call)


def _rename(call: Call, entry: RegistryEntry) -> Call:
    return replace(call, params={**call.params, "name": entry.name})
