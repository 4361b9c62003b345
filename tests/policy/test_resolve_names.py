"""The tool of a call is looked up once, by its name or an alias."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from refdesk.calls import Answer, Call, Caller
from refdesk.policy.policies import ResolveNames
from refdesk.tools.json_schema import Arguments
from refdesk.tools.registry import Tool

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class PrivateTool(Tool[Arguments]):
    def is_open_to(self, caller: Caller) -> bool:
        return caller.local


async def say(arguments: Arguments, call: Call) -> str:
    return ""


OPEN = Tool("talk__echo", "Echo", "Says it again.", "downstream", Arguments, say)
PRIVATE = PrivateTool("talk__secret", "Secret", "Is hidden.", "downstream", Arguments, say)
TOOLS = {"talk__echo": OPEN, "talk:echo": OPEN, "talk__secret": PRIVATE, "talk:secret": PRIVATE}


async def resolve(call: Call) -> Call:
    seen: list[Call] = []

    async def handler(call: Call) -> Answer:
        seen.append(call)
        return Answer({})

    await ResolveNames(TOOLS.get, TOOLS.get)(call, handler)
    return seen[0]


@pytest.mark.parametrize("name", ["talk__echo", "talk:echo"])
async def test_a_tool_is_found_by_its_name_and_by_an_alias(name: str) -> None:
    call = await resolve(Call("tools/call", {"name": name, "arguments": {"text": "hi"}}))
    assert call.tool is OPEN
    assert call.params == {"name": "talk__echo", "arguments": {"text": "hi"}}


async def test_an_alias_of_a_tool_that_the_caller_may_not_use_stays_unknown() -> None:
    call = await resolve(Call("tools/call", {"name": "talk:secret"}))
    assert call.tool is None
    assert call.target == "talk:secret"


async def test_a_hidden_tool_is_carried_for_the_policies_that_decide() -> None:
    assert (await resolve(Call("tools/call", {"name": "talk__secret"}))).tool is PRIVATE


@pytest.mark.parametrize("params", [{}, {"name": 1}, {"name": ["talk__echo"]}, {"name": "nothing"}])
async def test_a_call_without_a_known_tool_goes_on_unresolved(params: dict[str, object]) -> None:
    call = Call("tools/call", params)
    assert await resolve(call) is call
    assert call.tool is None


async def test_an_alias_of_a_prompt_is_replaced_by_its_name_if_the_caller_may_use_it() -> None:
    assert (await resolve(Call("prompts/get", {"name": "talk:echo"}))).target == "talk__echo"
    assert (await resolve(Call("prompts/get", {"name": "talk:secret"}))).target == "talk:secret"


async def test_only_calls_of_tools_and_prompts_are_looked_up() -> None:
    call = await resolve(Call("made/up", {"name": "talk:echo"}))
    assert (call.tool, call.target) == (None, "talk:echo")
