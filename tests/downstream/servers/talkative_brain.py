"""What the talkative server says, whatever the door it is asked at."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests.downstream.servers.talkative_tools import ICONS, META, TOOLS, Failure, InputNeeded, Work

Message = dict[str, Any]
Say = Callable[[Message | str | bytes], Awaitable[None]]
"""Sends a message; text and bytes go as they are, whatever they are."""

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = ("2026-07-28",)
INFO = {"name": "talkative", "title": "The talkative server", "version": "1.0", "icons": ICONS}
INSTRUCTIONS = "Ask it anything; it has a tool for that."
PAGE = 10
"""Lists come in pages of so many entries."""

CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
PROMPTS: list[dict[str, Any]] = [
    {
        "name": "greet",
        "title": "Greet someone",
        "description": "A greeting.",
        "arguments": [{"name": "name", "description": "Whom", "required": True}],
        "icons": ICONS,
        "_meta": META,
    },
    {"name": "poem", "description": "A poem."},
]
RESOURCES: list[dict[str, Any]] = [
    {
        "uri": f"talk://document/{number}",
        "name": f"Document {number}",
        "description": f"The document number {number}.",
        "mimeType": "text/plain",
        "annotations": {"audience": ["assistant"], "priority": 0.5},
        "icons": ICONS,
        "_meta": META,
    }
    for number in range(1, 13)
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "uriTemplate": "talk://letter/{name}",
        "name": "Letter",
        "description": "A letter to someone.",
        "mimeType": "text/plain",
        "_meta": META,
    }
]
NAMES = ("Ada", "Adele", "Alan", "Grace")
CACHEABLE = ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list")


def encode(message: Message | str | bytes) -> str | bytes:
    """As it goes onto the wire."""
    return json.dumps(message, separators=(",", ":")) if isinstance(message, dict) else message


class World:
    """What all clients of one process share."""

    def __init__(self, era: str = "both") -> None:
        self.speaks_legacy = era != "modern"
        self.speaks_modern = era != "legacy"
        self.tools = copy.deepcopy(TOOLS)
        self.clients: set[Client] = set()
        self.changes = 0
        self.cancelled: list[str] = []
        self._cancelling = asyncio.Event()
        self.nudges = asyncio.Semaphore(0)

    def note_cancelled(self, why: str) -> None:
        """A call of `cancel_me` is over."""
        self.cancelled.append(why)
        self._cancelling.set()

    async def wait_cancelled(self, count: int) -> None:
        """Until so many calls of `cancel_me` are over."""
        while len(self.cancelled) < count:
            self._cancelling.clear()
            await self._cancelling.wait()

    async def tell_all(self, method: str) -> None:
        """A list is another now."""
        kind = method.split("/")[1]
        for client in tuple(self.clients):
            await client.tell({"jsonrpc": "2.0", "method": method}, f"{kind}ListChanged")

    async def tell_subscribers(self, uri: str) -> None:
        """A resource is another now."""
        message = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
        for client in tuple(self.clients):
            await client.tell_updated(message, uri)


class Client:
    """One client: a connection, or a session of Streamable HTTP."""

    def __init__(self, world: World, say: Say) -> None:
        self.world = world
        self.say = say
        self.subscribed: set[str] = set()
        self._is_greeted = False
        self._listening: dict[str | int, tuple[Mapping[str, Any], Say]] = {}
        self._working: dict[str | int, asyncio.Task[Message]] = {}
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._ids = itertools.count(9000)
        world.clients.add(self)

    async def close(self) -> None:
        """The client is gone; so is what was done for it."""
        self.world.clients.discard(self)
        for task in self._working.values():
            task.cancel("closed")
        if self._working:
            await asyncio.wait(self._working.values())

    async def take(self, message: Message, say: Say, headers: Mapping[str, str]) -> Message | None:
        """Do what a message asks for: the answer, if there is one; what is said meanwhile goes to `say`."""
        id, method = message.get("id"), message.get("method")
        params = message.get("params") or {}
        if method is None:
            self._take_answer(message)
        elif id is None:
            self._take_notification(method, params)
        else:
            work = Work(self.world, self, say, params, headers, _is_modern(params))
            task = self._working[id] = asyncio.ensure_future(self._answer(id, method, work))
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                task.cancel("given up")
                raise
            finally:
                self._working.pop(id, None)
            return None if task.cancelled() else task.result()
        return None

    async def ask(self, method: str, params: Mapping[str, Any], say: Say) -> Any:
        """What the client answers to a question in the middle of its call."""
        id = next(self._ids)
        answer = self._asked[id] = asyncio.get_running_loop().create_future()
        try:
            await say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            message = await answer
        except asyncio.CancelledError:
            params = {"requestId": id, "reason": "Changed my mind"}
            await say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            raise
        finally:
            del self._asked[id]
        return message.get("result", {"error": message.get("error")})

    async def tell(self, message: Message, filter: str) -> None:
        """A notification that belongs to no call: to those who have been greeted, and to streams that listen for it."""
        if self._is_greeted:
            await self.say(message)
        for id, (wanted, say) in tuple(self._listening.items()):
            if wanted.get(filter):
                await say(_of_subscription(message, id))

    async def tell_updated(self, message: Message, uri: str) -> None:
        """As above, for a resource."""
        if uri in self.subscribed:
            await self.say(message)
        for id, (wanted, say) in tuple(self._listening.items()):
            if uri in (wanted.get("resourceSubscriptions") or ()):
                await say(_of_subscription(message, id))

    def _take_answer(self, message: Message) -> None:
        asked = self._asked.get(message.get("id", -1))
        if asked is not None and not asked.done():
            asked.set_result(message)

    def _take_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/cancelled":
            task = self._working.get(params.get("requestId", ""))
            if task is not None:
                task.cancel(f"told: {params.get('reason', '')}")

    async def _answer(self, id: str | int, method: str, work: Work) -> Message:
        try:
            result = await self._result(id, method, work)
        except Failure as failure:
            return {"jsonrpc": "2.0", "id": id, "error": failure.error}
        except InputNeeded as needed:
            result = needed.result
        if work.is_modern:
            result = _add_stamp(method, result)
        return {"jsonrpc": "2.0", "id": id, "result": result}

    async def _result(self, id: str | int, method: str, work: Work) -> Message:
        self._check_era(work)
        params = work.params
        if method == "tools/call":
            tool = self.world.tools.get(params.get("name", ""))
            if tool is None:
                raise Failure(-32602, f"Unknown tool: {params.get('name')}")
            return await tool.function(work)
        if method == "subscriptions/listen" and work.is_modern:
            return await self._listen(id, params.get("notifications") or {}, work.say)
        if method == "initialize" and not work.is_modern:
            return self._greet(params)
        if method == "server/discover" and work.is_modern:
            versions = [*MODERN]
            return {"supportedVersions": versions, "capabilities": CAPABILITIES, "instructions": INSTRUCTIONS}
        if method in ("resources/subscribe", "resources/unsubscribe") and not work.is_modern:
            (self.subscribed.add if method == "resources/subscribe" else self.subscribed.discard)(params["uri"])
            return {}
        if method in ("ping", "logging/setLevel") and not work.is_modern:
            return {}
        return self._read(method, params)

    def _check_era(self, work: Work) -> None:
        supported = [*(LEGACY if self.world.speaks_legacy else ()), *(MODERN if self.world.speaks_modern else ())]
        wanted = _version(work.params)
        if work.is_modern and not self.world.speaks_modern:
            raise Failure(-32601, "Method not found")
        if (work.is_modern and wanted not in MODERN) or (not work.is_modern and not self.world.speaks_legacy):
            data = {"supported": supported, "requested": wanted or work.params.get("protocolVersion", "")}
            raise Failure(-32022, "Unsupported protocol version", data)

    def _greet(self, params: Mapping[str, Any]) -> Message:
        self._is_greeted = True
        wanted = params.get("protocolVersion")
        version = wanted if wanted in LEGACY else LEGACY[-1]
        return {
            "protocolVersion": version,
            "capabilities": CAPABILITIES,
            "serverInfo": INFO,
            "instructions": INSTRUCTIONS,
        }

    async def _listen(self, id: str | int, wanted: Mapping[str, Any], say: Say) -> Message:
        acknowledged = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": wanted}}
        await say(_of_subscription({"jsonrpc": "2.0", **acknowledged}, id))
        self._listening[id] = (wanted, say)
        try:
            await asyncio.Event().wait()
        finally:
            del self._listening[id]
        return {}

    def _read(self, method: str, params: Mapping[str, Any]) -> Message:
        match method:
            case "tools/list":
                return _page("tools", [tool.definition for tool in self.world.tools.values()], params)
            case "prompts/list":
                return _page("prompts", PROMPTS, params)
            case "resources/list":
                return _page("resources", RESOURCES, params)
            case "resources/templates/list":
                return _page("resourceTemplates", TEMPLATES, params)
            case "prompts/get":
                return _prompt(params)
            case "resources/read":
                return _contents(params.get("uri", ""))
            case "completion/complete":
                begun = params["argument"]["value"]
                values = [name for name in NAMES if name.startswith(begun)]
                return {"completion": {"values": values, "total": len(values), "hasMore": False}}
        raise Failure(-32601, f"Method not found: {method}")


def _page(member: str, entries: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Message:
    cursor = str(params.get("cursor", "from-0"))
    if not (cursor.startswith("from-") and cursor[5:].isdigit()):
        raise Failure(-32602, "Invalid cursor")
    begin = int(cursor[5:])
    following = {"nextCursor": f"from-{begin + PAGE}"} if begin + PAGE < len(entries) else {}
    return {member: list(entries[begin : begin + PAGE]), **following}


def _prompt(params: Mapping[str, Any]) -> Message:
    if params.get("name") not in ("greet", "poem"):
        raise Failure(-32602, f"Unknown prompt: {params.get('name')}")
    words = f"Say hello to {(params.get('arguments') or {}).get('name', 'everyone')}"
    return {"description": words, "messages": [{"role": "user", "content": {"type": "text", "text": words}}]}


def _contents(uri: str) -> Message:
    if uri not in [resource["uri"] for resource in RESOURCES] and not uri.startswith("talk://letter/"):
        raise Failure(-32002, "Resource not found", {"uri": uri})
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"The text of {uri}", "_meta": META}]}


def _version(params: Mapping[str, Any]) -> str | None:
    version = (params.get("_meta") or {}).get("io.modelcontextprotocol/protocolVersion")
    return version if isinstance(version, str) else None


def _is_modern(params: Mapping[str, Any]) -> bool:
    return _version(params) is not None


def _add_stamp(method: str, result: Message) -> Message:
    meta = {**result.get("_meta", {}), "io.modelcontextprotocol/serverInfo": INFO}
    caching = {"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE or method == "resources/read" else {}
    return {"resultType": "complete", **caching, **result, "_meta": meta}


def _of_subscription(message: Message, id: str | int) -> Message:
    params = message.get("params", {})
    return {**message, "params": {**params, "_meta": {"io.modelcontextprotocol/subscriptionId": id}}}


async def converse(client: Client, messages: AsyncIterable[str | bytes], headers: Mapping[str, str]) -> None:
    """On a connection that goes both ways: take messages as they come, answer each when its answer is there."""

    async def serve(message: Message) -> None:
        answer = await client.take(message, client.say, headers)
        if answer is not None:
            await client.say(answer)

    async with asyncio.TaskGroup() as tasks:
        async for line in messages:
            tasks.create_task(serve(json.loads(line)))
        await client.close()
