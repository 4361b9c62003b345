"""A model on loopback that says what it was told to say, so that an agent takes complete turns without a service.

It speaks as much of the Messages API as an agent's turn needs, and remembers every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """An answer that ends the turn."""

    text: str

    reason = "end_turn"

    def block(self) -> tuple[Json, Json]:
        """The content block as it begins, and the rest of it."""
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": self.text}


@dataclass(frozen=True)
class Use:
    """A tool that the agent is to call."""

    tool: str
    arguments: Json

    reason = "tool_use"

    def block(self) -> tuple[Json, Json]:
        """The content block as it begins, and the rest of it."""
        begun = {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": {}}
        return begun, {"type": "input_json_delta", "partial_json": json.dumps(self.arguments)}


@dataclass
class StubModel:
    """Gives one reply after the other: the next whenever the agent has come back with a tool's result."""

    replies: Sequence[Say | Use]
    url: str = ""
    requests: list[Json] = field(default_factory=list)

    def tool_results(self) -> list[str]:
        """All that tools have answered, as the agent passed it on, in the newest request."""
        return [json.dumps(block["content"], ensure_ascii=False) for block in _results_in(self.requests[-1])]

    def tools_offered(self) -> set[str]:
        """The tools that the model could have called."""
        return {tool["name"] for request in self.requests for tool in request["tools"]}

    def heard(self) -> str:
        """Everything that was put to the model."""
        return json.dumps([request["messages"] for request in self.requests], ensure_ascii=False)

    def reply_to(self, request: Json) -> Say | Use:
        """What it says next."""
        done = len(_results_in(request))
        return self.replies[min(done, len(self.replies) - 1)]

    async def messages(self, http: Request) -> StreamingResponse:
        """`POST /v1/messages`, which agents want as a stream of events."""
        request = await http.json()
        self.requests.append(request)
        return StreamingResponse(_events(request, self.reply_to(request)), media_type="text/event-stream")


def _results_in(request: Json) -> list[Json]:
    contents = (message["content"] for message in request["messages"] if isinstance(message["content"], list))
    return [block for content in contents for block in content if block["type"] == "tool_result"]


def _events(request: Json, reply: Say | Use) -> Iterator[str]:
    begun, rest = reply.block()
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    yield _event("message_start", message=message)
    yield _event("content_block_start", index=0, content_block=begun)
    yield _event("content_block_delta", index=0, delta=rest)
    yield _event("content_block_stop", index=0)
    yield _event("message_delta", delta={"stop_reason": reply.reason}, usage={"output_tokens": 1})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


class _QuietServer(uvicorn.Server):
    """A server that leaves the signals of the test run alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def stub_model(*replies: Say | Use) -> AsyncIterator[StubModel]:
    """A model on a free port; connections are taken from the first moment on."""
    model = StubModel(replies)
    app = Starlette(routes=[Route("/v1/messages", model.messages, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        model.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=5)
        server = _QuietServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield model
        finally:
            server.should_exit = True
            async with asyncio.timeout(20):
                await serving
