"""The tools of the talkative server: one for everything that a tool can do while and after it works."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.downstream.servers.talkative_brain import Client, Say, World

Result = dict[str, Any]

ICONS = [{"src": "data:image/png;base64,iVBORw0KGgo=", "mimeType": "image/png", "sizes": ["16x16"]}]
META = {"vendor.example/kind": "probe"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
STATE = "where the talkative server was"
"""The `requestState` of an answer that asks for input; it has to come back as it is."""


class Failure(Exception):
    """Answered as an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


class InputNeeded(Exception):
    """Newest revision: the answer is a question."""

    def __init__(self, method: str, params: Mapping[str, Any]) -> None:
        super().__init__(method)
        questions = {"question": {"method": method, "params": params}}
        self.result = {"resultType": "input_required", "inputRequests": questions, "requestState": STATE}


@dataclass
class Work:
    """A tool being called: with what, by whom, and how to speak to them meanwhile."""

    world: World
    client: Client
    say: Say
    params: Mapping[str, Any]
    headers: Mapping[str, str]
    is_modern: bool
    arguments: Mapping[str, Any] = field(init=False)
    meta: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = self.params.get("arguments") or {}
        self.meta = self.params.get("_meta") or {}

    async def notify(self, method: str, **params: Any) -> None:
        """A notification on the way of this call's answer."""
        await self.say({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})

    async def progress(self, done: int, total: int, message: str) -> None:
        """Told only to callers who want to know."""
        if "progressToken" in self.meta:
            token = self.meta["progressToken"]
            await self.notify("progress", progressToken=token, progress=done, total=total, message=message)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """What the client answers: in between, or in the newest revision when it calls again."""
        if not self.is_modern:
            return await self.client.ask(method, params, self.say)
        if "inputResponses" not in self.params:
            raise InputNeeded(method, params)
        if self.params.get("requestState") != STATE:
            raise Failure(-32602, "That is not the requestState that was given")
        return self.params["inputResponses"]["question"]


Function = Callable[[Work], Awaitable[Result]]


@dataclass
class Tool:
    """A tool and how it is offered."""

    function: Function
    definition: dict[str, Any]


TOOLS: dict[str, Tool] = {}


def tool(
    description: str, /, *, output: Mapping[str, Any] | None = None, has_hints: bool = True, **arguments: str
) -> Callable[[Function], None]:
    """ExposedItem a function as a tool; the arguments are named with their JSON types and may all be left out."""

    def offer(function: Function) -> None:
        name = function.__name__
        TOOLS[name] = Tool(function, define(name, description, arguments))
        if output is not None:
            TOOLS[name].definition["outputSchema"] = output
        if not has_hints:
            TOOLS[name].definition["annotations"] = {}

    return offer


def define(name: str, description: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A definition with everything that one can have."""
    properties = {argument: {"type": type} for argument, type in arguments.items()}
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
        "icons": ICONS,
        "_meta": META,
    }


def text(words: str, **more: Any) -> Result:
    """The result of most tools."""
    return {"content": [{"type": "text", "text": words}], **more}


def structure(value: dict[str, Any]) -> Result:
    """A result that is read by programs, and the same as text."""
    return text(json.dumps(value), structuredContent=value)


@tool("Say it again.", text="string")
async def echo(work: Work) -> Result:
    return text(work.arguments.get("text", ""))


@tool("Wait some milliseconds.", ms="integer")
async def sleep_ms(work: Work) -> Result:
    await asyncio.sleep(work.arguments.get("ms", 0) / 1000)
    return text("slept")


@tool("So many letters.", n="integer")
async def big(work: Work) -> Result:
    return text("x" * work.arguments.get("n", 1000))


@tool(
    "A result with a structure.",
    output={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    a="integer",
)
async def structured(work: Work) -> Result:
    return {**structure({"a": work.arguments.get("a", 1)}), "_meta": {"vendor.example/result": 2}}


@tool("A picture.")
async def image(work: Work) -> Result:
    return {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png", "annotations": {"priority": 0.5}}]}


@tool("A sound.")
async def audio(work: Work) -> Result:
    return {"content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]}


@tool("A link to a document, and a document itself.")
async def link(work: Work) -> Result:
    there = {"type": "resource_link", "uri": "talk://document/1", "name": "Document 1", "mimeType": "text/plain"}
    here = {"uri": "talk://document/2", "mimeType": "text/plain", "text": "The text of document 2"}
    return {"content": [there, {"type": "resource", "resource": here}]}


@tool("Fail as a tool.")
async def tool_error(work: Work) -> Result:
    return text("The tool said no", isError=True)


@tool("Fail as a protocol.")
async def rpc_error(work: Work) -> Result:
    raise Failure(-32050, "The protocol said no", {"why": "because", "deep": {"list": [1, 2]}})


@tool("Tell of some steps.", steps="integer")
async def progress(work: Work) -> Result:
    steps = work.arguments.get("steps", 3)
    for step in range(1, steps + 1):
        await work.progress(step, steps, f"step {step}")
    return text("done")


@tool("Write a log message.", text="string", level="string")
async def log(work: Work) -> Result:
    # In the newest revision a server keeps quiet unless the request names a level.
    if not work.is_modern or "io.modelcontextprotocol/logLevel" in work.meta:
        level, words = work.arguments.get("level", "info"), work.arguments.get("text", "hello")
        await work.notify("message", level=level, logger="talkative", data=words)
    return text("logged")


NAME_FORM = {
    "mode": "form",
    "message": "What is your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


@tool("Ask the user for a name.")
async def elicit(work: Work) -> Result:
    address = {"mode": "url", "url": work.arguments["url"]} if "url" in work.arguments else {}
    return structure({"answer": await work.ask("elicitation/create", {**NAME_FORM, **address})})


@tool("Ask the client's model.")
async def sample(work: Work) -> Result:
    messages = [{"role": "user", "content": {"type": "text", "text": "Say hello"}}]
    params = {"messages": messages, "maxTokens": 5, "systemPrompt": "Be brief", "includeContext": "allServers"}
    return structure({"answer": await work.ask("sampling/createMessage", params)})


@tool("Ask for the client's roots.")
async def roots(work: Work) -> Result:
    return structure({"answer": await work.ask("roots/list", {})})


@tool("Ask the user for a name, call that off when nudged, and answer when nudged again.")
async def change_mind(work: Work) -> Result:
    asking = asyncio.ensure_future(work.ask("elicitation/create", NAME_FORM))
    await work.world.nudges.acquire()
    asking.cancel()
    await work.world.nudges.acquire()
    return text("never mind")


@tool("Let `change_mind` go on.", has_hints=False)
async def nudge(work: Work) -> Result:
    work.world.nudges.release()
    return text("nudged")


@tool("Wait for ever, having told of one step, unless called off.")
async def cancel_me(work: Work) -> Result:
    try:
        await work.progress(1, 2, "waiting")
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        work.world.note_cancelled(str(error.args[0] if error.args else "ended"))
        raise
    return text("never")


@tool(
    "Why calls of `cancel_me` ended; waits up to `wait_ms` for `at_least` so many.",
    wait_ms="integer",
    at_least="integer",
)
async def was_cancelled(work: Work) -> Result:
    with suppress(TimeoutError):
        async with asyncio.timeout(work.arguments.get("wait_ms", 0) / 1000):
            await work.world.wait_cancelled(work.arguments.get("at_least", 1))
    return structure({"cancelled": work.world.cancelled})


@tool("Add a tool and tell everyone.")
async def grow(work: Work) -> Result:
    number = sum(name.startswith("grown") for name in work.world.tools) + 1
    name = f"grown_{number}"
    work.world.tools[name] = Tool(echo_name(name), define(name, "Grown while you watched.", {}))
    await work.world.tell_all("notifications/tools/list_changed")
    return text(name)


@tool("Take away what has grown and tell everyone.")
async def shrink(work: Work) -> Result:
    for name in [name for name in work.world.tools if name.startswith("grown")]:
        del work.world.tools[name]
    await work.world.tell_all("notifications/tools/list_changed")
    return text("shrunk")


@tool("Has another description each time that `change` is called.")
async def changing(work: Work) -> Result:
    return text("changing")


@tool("Change the description of `changing` and tell everyone.", description="string")
async def change(work: Work) -> Result:
    work.world.changes += 1
    definition = work.world.tools["changing"].definition
    definition["description"] = work.arguments.get("description", f"Description number {work.world.changes}.")
    await work.world.tell_all("notifications/tools/list_changed")
    return text(definition["description"])


@tool("Tell those who have subscribed to a resource that it is another now.", uri="string")
async def touch(work: Work) -> Result:
    uri = work.arguments.get("uri", "talk://document/1")
    await work.world.tell_subscribers(uri)
    return text(uri)


@tool("The process of this server.")
async def pid(work: Work) -> Result:
    return text(str(os.getpid()))


@tool("The `_meta` that this call came with.")
async def meta(work: Work) -> Result:
    return structure({"meta": dict(work.meta)})


@tool("The HTTP headers that this call came with, names in small letters.")
async def headers(work: Work) -> Result:
    return structure({"headers": dict(work.headers)})


@tool("Say a lot that is no message, and an answer to nothing; then answer.")
async def garbage(work: Work) -> Result:
    for nonsense in (
        "this is no JSON",
        '{"jsonrpc": "2.0", "id"',
        "null",
        "[1, 2]",
        '"text"',
        "5",
        b'{"bad": "\xff\xfe"}',
    ):
        await work.say(nonsense)
    await work.say({"jsonrpc": "2.0", "id": "nobody-asked", "result": {}})
    await work.say({"jsonrpc": "2.0"})
    return text("sorry")


@tool("Write a line on standard error.", text="string")
async def stderr(work: Work) -> Result:
    sys.stderr.write(work.arguments.get("text", "complaint") + "\n")
    sys.stderr.flush()
    return text("written")


@tool("End this process without a word.", code="integer")
async def die(work: Work) -> Result:
    os._exit(work.arguments.get("code", 1))


def echo_name(name: str) -> Function:
    """A tool that says its name."""

    async def say_name(work: Work) -> Result:
        return text(name)

    return say_name
