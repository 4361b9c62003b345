"""All that can go wrong with an answer over HTTP, by name; `bad_http` says where they are met."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from typing import TYPE_CHECKING

from tests.downstream.servers.raw_http import FAULTS, JSON, Fault, HangUp, Request, as_json, fault

if TYPE_CHECKING:
    from tests.downstream.servers.bad_http import BadHttp

# The faults, from silence to lies.


@fault
async def fault_hang(server: BadHttp, request: Request) -> None:
    await asyncio.Event().wait()


@fault
async def fault_hanghdr(server: BadHttp, request: Request) -> None:
    await request.head(200, content_type=JSON, content_length="1000")
    await asyncio.Event().wait()


@fault
async def fault_hangsse(server: BadHttp, request: Request) -> None:
    await request.begin_events()
    await asyncio.Event().wait()


@fault
async def fault_slowhead(server: BadHttp, request: Request) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await request.write(b"X-Drip: 1\r\n")
        await asyncio.sleep(server.drip_seconds)


@fault
async def fault_drip(server: BadHttp, request: Request) -> None:
    """A byte at a time; the last one would come after hours."""
    await request.head(200, content_type=JSON, content_length="1000000")
    while True:
        await request.write(b" ")
        await asyncio.sleep(server.drip_seconds)


@fault
async def fault_dripsse(server: BadHttp, request: Request) -> None:
    """An answer stream in single bytes, without pauses: slow, but whole."""
    await request.begin_events()
    for byte in b": c\r\nid: 7\r\ndata: " + as_json(request.answer("dripped")) + b"\r\n\r\n":
        await request.chunk(bytes((byte,)))
    await request.chunk(b"")


@fault
async def fault_sseforever(server: BadHttp, request: Request) -> None:
    await request.begin_events()
    while True:
        note = {"level": "info", "data": "still here"}
        await request.event({"jsonrpc": "2.0", "method": "notifications/message", "params": note})
        await asyncio.sleep(server.drip_seconds)


@fault
async def fault_comments(server: BadHttp, request: Request) -> None:
    await request.begin_events()
    while True:
        await request.chunk(b": still here\n\n" * 1000)
        await asyncio.sleep(server.drip_seconds)


@fault
async def fault_bigcomment(server: BadHttp, request: Request) -> None:
    """One line without an end."""
    await request.begin_events()
    while True:
        await request.chunk(b":" + b"x" * 65_536)


@fault
async def fault_reset(server: BadHttp, request: Request) -> None:
    _reset(request)


@fault
async def fault_resetmid(server: BadHttp, request: Request) -> None:
    await request.head(200, content_type=JSON, content_length="1000")
    await request.write(b'{"jsonrpc":')
    _reset(request)


def _reset(request: Request) -> None:
    connection = request.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.writer.transport.abort()
    raise HangUp


@fault
async def fault_close(server: BadHttp, request: Request) -> None:
    raise HangUp


@fault
async def fault_lenlie(server: BadHttp, request: Request) -> None:
    """More is announced than comes, and the connection is closed."""
    body = as_json(request.answer())
    await request.head(200, content_type=JSON, content_length=str(len(body) + 100))
    await request.write(body)
    raise HangUp


@fault
async def fault_lenshort(server: BadHttp, request: Request) -> None:
    """Less is announced than comes: the rest stands where the next answer is to be."""
    body = as_json(request.answer())
    await request.head(200, content_type=JSON, content_length=str(len(body) - 10))
    await request.write(body)


@fault
async def fault_badchunk(server: BadHttp, request: Request) -> None:
    await request.head(200, content_type=JSON, transfer_encoding="chunked")
    await request.write(b"zz\r\nnot a size\r\n")


@fault
async def fault_badchunksse(server: BadHttp, request: Request) -> None:
    await request.begin_events()
    await request.chunk(b": hello\n\n")
    await request.write(b"zz\r\nnot a size\r\n")


@fault
async def fault_nothttp(server: BadHttp, request: Request) -> None:
    await request.write(b"220 mail.example ESMTP\r\n\r\n")


@fault
async def fault_bighead(server: BadHttp, request: Request) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\nX-Big: " + b"x" * 1_000_000 + b"\r\n\r\n")


# Bodies that are no answer.


@fault
async def fault_notjson(server: BadHttp, request: Request) -> None:
    await request.reply(b"{oops")


@fault
async def fault_html(server: BadHttp, request: Request) -> None:
    await request.reply(b"<html>Welcome to our proxy</html>", kind="text/html")


@fault
async def fault_empty(server: BadHttp, request: Request) -> None:
    await request.reply(b"")


@fault
async def fault_taken(server: BadHttp, request: Request) -> None:
    """A request is taken as if it were a notification: no answer will come."""
    await request.reply(status=202)


@fault
async def fault_utf8bad(server: BadHttp, request: Request) -> None:
    await request.reply(as_json(request.answer("MARK")).replace(b"MARK", b"\xff\xfe"))


@fault
async def fault_deep(server: BadHttp, request: Request) -> None:
    await request.reply(b"[" * 100_000 + b"]" * 100_000)


@fault
async def fault_parts(server: BadHttp, request: Request) -> None:
    """A megabyte of nothing but empty lists."""
    await request.reply(b"[" + b"[]," * 330_000 + b"[]]")


@fault
async def fault_number(server: BadHttp, request: Request) -> None:
    await request.reply(b"17")


@fault
async def fault_nullresult(server: BadHttp, request: Request) -> None:
    await request.reply(as_json({**request.answer(), "result": None}))


@fault
async def fault_wrongid(server: BadHttp, request: Request) -> None:
    await request.reply(as_json({**request.answer(), "id": "somebody else's"}))


@fault
async def fault_batch(server: BadHttp, request: Request) -> None:
    """The answer among other messages, as of 2025-03-26."""
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "first"}}
    await request.reply(as_json([note, 17, request.answer("of a batch")]))


@fault
async def fault_big(server: BadHttp, request: Request) -> None:
    """An answer as large as wished, with its true length."""
    await request.reply(as_json(request.answer("x" * request.number)))


@fault
async def fault_bigchunked(server: BadHttp, request: Request) -> None:
    """A body without end and without a length."""
    await request.head(200, content_type=JSON, transfer_encoding="chunked")
    while True:
        await request.chunk(b'"' + b"x" * 65_536)


@fault
async def fault_bomb(server: BadHttp, request: Request) -> None:
    """Sixty-four megabytes of zeros in as many kilobytes."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    await request.reply(body, content_encoding="gzip")


@fault
async def fault_packed(server: BadHttp, request: Request) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(as_json(request.answer("unpacked"))) + packer.flush()
    await request.reply(body, content_encoding="gzip")


# Answer streams.


@fault
async def fault_progress(server: BadHttp, request: Request) -> None:
    """No fault: progress and a message, then the answer."""
    await request.begin_events()
    token = (request.message.get("params") or {}).get("_meta", {}).get("progressToken", request.message.get("id"))
    for done in (1, 2):
        params = {"progressToken": token, "progress": done, "total": 2}
        await request.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    note = {"level": "info", "data": "almost"}
    await request.event({"jsonrpc": "2.0", "method": "notifications/message", "params": note})
    await request.event(request.answer("progressed"))
    await request.chunk(b"")


@fault
async def fault_ssegarbage(server: BadHttp, request: Request) -> None:
    await request.begin_events()
    await request.chunk(b"data: {oops\n\ndata: \xff\xfe\n\nevent: other\ndata: 1\n\ndata: 17\n\nnonsense\n\n")
    await request.event(request.answer("after garbage"))
    await request.chunk(b"")


@fault
async def fault_bigevent(server: BadHttp, request: Request) -> None:
    """An event that is too large, then the answer."""
    await request.begin_events()
    for _ in range(request.number // 1000):
        await request.chunk(b"data: " + b"x" * 993 + b"\n")
    await request.chunk(b"\n")
    await request.event(request.answer("after a big one"))
    await request.chunk(b"")


@fault
async def fault_sseopen(server: BadHttp, request: Request) -> None:
    """The answer, but the stream is never closed."""
    await request.begin_events()
    await request.event(request.answer("and now?"))
    await asyncio.Event().wait()


@fault
async def fault_ssecut(server: BadHttp, request: Request) -> None:
    """The stream is over, whole and without an answer."""
    await request.begin_events()
    await request.chunk(b": nothing to say\n\n")
    await request.chunk(b"")


@fault
async def fault_ssebroken(server: BadHttp, request: Request) -> None:
    """The connection ends in the middle of an event."""
    await request.begin_events()
    await request.chunk(b'data: {"jsonrpc":"2.0",')
    raise HangUp


@fault
async def fault_resumable(server: BadHttp, request: Request) -> None:
    """The stream breaks twice; what is left is had by its last event's id."""
    last = request.headers.get("last-event-id")
    if request.method == "POST":
        server.happened.add("asked " + request.message["id"])
        await request.begin_events()
        await request.chunk(b"retry: 10\nid: one\ndata:\n\n")
    elif last == "one":
        await request.begin_events()
        note = {"level": "info", "data": "resumed"}
        await request.event({"jsonrpc": "2.0", "method": "notifications/message", "params": note}, "two")
    else:
        asked = next(what.removeprefix("asked ") for what in server.happened if what.startswith("asked "))
        await request.begin_events()
        await request.event({**request.answer(f"resumed after {last}"), "id": asked}, "three")
        await request.chunk(b"")
    raise HangUp


@fault
async def fault_unresumable(server: BadHttp, request: Request) -> None:
    """There are ids, but no way to go on from them."""
    if request.method == "POST":
        await request.begin_events()
        await request.chunk(b"retry: 1\nid: one\ndata:\n\n")
        raise HangUp
    await request.reply(status=500)


# Refusals.


def _refusal(status: int, body: bytes = b"", **headers: str) -> Fault:
    async def refuse(server: BadHttp, request: Request) -> None:
        said = {name: text.replace("HERE", server.url("elsewhere")) for name, text in headers.items()}
        await request.reply(body, status, "text/plain", **said)

    return refuse


FAULTS |= {
    "e400bare": _refusal(400, b"bad request"),
    "e401": _refusal(401, www_authenticate='Bearer resource_metadata="HERE"'),
    "e403": _refusal(403),
    "e404": _refusal(404),
    "e405": _refusal(405),
    "e413": _refusal(413),
    "e429": _refusal(429, retry_after="7"),
    "e429bare": _refusal(429),
    "e500": _refusal(500, b"Traceback (most recent call last): secret"),
    "e502": _refusal(502, b"<html>bad gateway</html>"),
    "e503": _refusal(503, retry_after="7"),
    "e503date": _refusal(503, retry_after="Fri, 31 Dec 9999 23:59:59 GMT"),
    "redirect": _refusal(302, location="HERE"),
    "redirect307": _refusal(307, location="/elsewhere"),
    "e204": _refusal(204),
    "e301bare": _refusal(301),
}


@fault
async def fault_e400(server: BadHttp, request: Request) -> None:
    await request.reply(as_json(request.failure()), 400)


@fault
async def fault_e400noid(server: BadHttp, request: Request) -> None:
    await request.reply(as_json({**request.failure(-32022, "Unsupported protocol version"), "id": None}), 400)


@fault
async def fault_e404method(server: BadHttp, request: Request) -> None:
    """As the newest revision says that a method is unknown."""
    await request.reply(as_json(request.failure(-32601, "Method not found")), 404)


@fault
async def fault_e401once(server: BadHttp, request: Request) -> None:
    await (request.reply(status=401) if server.once("401") else request.reply(as_json(request.answer("let in"))))


@fault
async def fault_e404session(server: BadHttp, request: Request) -> None:
    """The session is forgotten, once; with a new one it works."""
    if server.once("404"):
        server.sessions.clear()
        await request.reply(status=404)
    else:
        await request.reply(as_json(request.answer("in a new session")))
