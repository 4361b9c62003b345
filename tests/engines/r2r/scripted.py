"""A server on loopback that answers as R2R 3.6.6 was recorded to, counts what it is asked, and fails when told to.

It also leaks as R2R does: whoever owns a document finds it whatever collections stand at the top of a filter.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID, uuid4, uuid5

import anyio

from tests.waiting import PATIENCE_SECONDS

EMAIL, PASSWORD = "service@example.com", "Pa55word-of-the-service"
TIME = "2026-11-15T18:37:59.192104Z"
OWNER = "a1b4a229-5cf1-50d5-a33f-a62cf11481ca"
REFUSED = {"message": "Invalid token or API key", "error_type": "R2RException"}


@dataclass(eq=False)
class Fault:
    """What happens to some requests in place of an answer."""

    path: str
    status: int = 0
    body: Any = None
    times: int | None = None
    drops: bool = False
    """Whether the connection is closed without an answer."""
    after: bool = False
    """Whether it happens only once the request has been served."""
    stalls: bool = False
    """Whether the documents that are there then stay unfinished, as when R2R is restarted while it embeds them."""
    gate: asyncio.Event | None = None
    """What is waited for first."""
    raw: bytes | None = None


@dataclass(frozen=True)
class Seen:
    """A request."""

    method: str
    target: str
    """Path and query as they were sent."""
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode(), keep_blank_values=True).items()}


@dataclass
class ScriptedR2R:
    """What it holds, and what it was asked."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    access: set[str] = field(default_factory=set)
    refresh: set[str] = field(default_factory=set)
    lifetime: float = 3600.0
    leaks: bool = False
    """Whether searches heed no filter at all."""
    forgets_collections: bool = False
    """Whether documents land in the account's default collection, whatever they are sent with."""
    answer: str = "A fox eats berries. [{0}]"
    """What the model writes, with the short ids of the chunks that were found."""
    faults: list[Fault] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, path: str, method: str = "") -> int:
        """How many requests there were whose path begins so."""
        return sum(urlsplit(s.target).path.startswith(path) and method in ("", s.method) for s in self.seen)

    def note(self, seen: Seen) -> None:
        """A request has come in."""
        self.seen.append(seen)
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_requests(self, path: str, times: int) -> None:
        """Wait until there were so many requests whose path begins so."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while self.count(path) < times:
                await self._news.wait()

    def bodies(self, path: str) -> list[Any]:
        return [seen.json for seen in self.seen if seen.target.startswith(path)]

    @contextmanager
    def fault(self, path: str = "/", **what: Any) -> Iterator[Fault]:
        """Disturb requests whose path begins so, while the block goes on."""
        fault = Fault(path, **what)
        self.faults.append(fault)
        try:
            yield fault
        finally:
            if fault in self.faults:
                self.faults.remove(fault)

    def revoke(self) -> None:
        """Have every token that was given out refused."""
        self.access.clear()

    # What it answers

    def respond(self, seen: Seen) -> tuple[int, Any]:
        parts = [unquote(part) for part in urlsplit(seen.target).path.strip("/").split("/")]
        if parts[0] != "v3":
            return 404, {"detail": "Not Found"}
        match seen.method, *parts[1:]:
            case "GET", "health":
                return 200, {"results": {"message": "ok"}}
            case "POST", "users", "login":
                return self._login(seen.form)
            case "POST", "users", "refresh-token":
                return self._refresh(seen.json)
        if seen.headers.get("authorization", "").removeprefix("Bearer ") not in self.access:
            return 401, REFUSED
        return self._serve(seen, parts[1:])

    def _serve(self, seen: Seen, parts: list[str]) -> tuple[int, Any]:
        match seen.method, *parts:
            case "GET", "collections":
                return self._page(seen, list(self.collections.values()))
            case "POST", "collections":
                return self._create(seen.json)
            case "GET", "collections", id:
                return (200, {"results": self.collections[id]}) if id in self.collections else _missing("collection")
            case "POST", "collections", id:
                self.collections[id].update(seen.json)
                return 200, {"results": self.collections[id]}
            case "DELETE", "collections", id:
                return (200, {"results": {"success": True}}) if self.collections.pop(id, 0) else _missing("collection")
            case "GET", "collections", id, "documents":
                return self._page(seen, [d for d in self.documents.values() if id in d["collection_ids"]])
            case (("POST" | "DELETE"), "collections", id, "documents", document):
                return self._assign(seen.method, id, document)
            case "POST", "documents":
                return self._ingest(seen.form)
            case "GET", "documents":
                ids = parse_qs(urlsplit(seen.target).query).get("ids", [])
                return self._page(seen, [d for id, d in self.documents.items() if id in ids])
            case "GET", "documents", id:
                return (200, {"results": self.documents[id]}) if id in self.documents else _missing("Document")
            case "DELETE", "documents", id:
                self.texts.pop(id, None)
                return (200, {"results": {"success": True}}) if self.documents.pop(id, 0) else _missing("Document")
            case "GET", "documents", id, "chunks":
                return self._page(seen, self._chunks_of(id)) if id in self.documents else _missing("Document")
            case "POST", "retrieval", "search":
                return 200, {"results": self.search(seen.json)}
            case "POST", "retrieval", "rag":
                return self._rag(seen.json)
        return 404, {"detail": "Not Found"}

    def _login(self, form: dict[str, str]) -> tuple[int, Any]:
        if form.get("username") != EMAIL:
            return 404, {"message": "User not found", "error_type": "R2RException"}
        if form.get("password") != PASSWORD:
            return 401, {"message": "Incorrect email or password", "error_type": "R2RException"}
        return 200, self._tokens()

    def _refresh(self, token: Any) -> tuple[int, Any]:
        if not isinstance(token, str):
            return 422, {"detail": [{"loc": ["body"], "msg": "Input should be a valid string", "input": token}]}
        if token not in self.refresh:
            return 401, {"message": "Token has been invalidated", "error_type": "R2RException"}
        self.refresh.discard(token)
        return 200, self._tokens()

    def _tokens(self) -> Any:
        access, refresh = (make_token(self.lifetime, next(self._numbers)) for _ in range(2))
        self.access.add(access)
        self.refresh.add(refresh)
        return {"results": {"access_token": {"token": access}, "refresh_token": {"token": refresh}}}

    def _page(self, seen: Seen, rows: list[Any]) -> tuple[int, Any]:
        query = parse_qs(urlsplit(seen.target).query)
        offset, limit = int(query.get("offset", ["0"])[0]), int(query.get("limit", ["100"])[0])
        return 200, {"results": rows[offset : offset + limit], "total_entries": len(rows)}

    def _create(self, body: Any) -> tuple[int, Any]:
        if any(entry["name"] == body["name"] for entry in self.collections.values()):
            return 409, {"message": "Collection with this ID already exists", "error_type": "R2RException"}
        id = str(uuid4())
        moments = {"created_at": TIME, "updated_at": TIME}
        self.collections[id] = {"id": id, "owner_id": OWNER, **body, **moments, "user_count": 1, "document_count": 0}
        return 200, {"results": self.collections[id]}

    def _assign(self, method: str, id: str, document: str) -> tuple[int, Any]:
        if document not in self.documents:
            return _missing("Document")
        there = self.documents[document]["collection_ids"]
        if method == "DELETE":
            with suppress(ValueError):
                there.remove(id)
        elif id in there:
            return 409, {"message": "Document is already assigned to the collection", "error_type": "R2RException"}
        else:
            there.append(id)
        return 200, {"results": {"message": "done"}}

    def _ingest(self, form: dict[str, str]) -> tuple[int, Any]:
        id = form["id"]
        if id in self.documents and self.documents[id]["ingestion_status"] != "failed":
            return 409, {"message": f"Document {id} already exists.", "error_type": "R2RException"}
        where = [str(uuid5(UUID(int=0), "default"))] if self.forgets_collections else json.loads(form["collection_ids"])
        self.put(id, form["raw_text"].split("\n\n"), where, json.loads(form["metadata"]))
        return 202, {"results": {"message": "Document created", "task_id": None, "document_id": id}}

    def put(self, id: str, texts: list[str], collections: list[str], metadata: dict[str, Any], **more: Any) -> None:
        """Have a document, whoever brought it in."""
        self.texts[id] = texts
        self.documents[id] = {
            "id": id,
            "collection_ids": list(collections),
            "owner_id": OWNER,
            "document_type": "txt",
            "metadata": {**metadata, "version": "v0"},
            "title": metadata.get("title", "N/A"),
            "size_in_bytes": sum(map(len, texts)),
            "ingestion_status": "success",
            "created_at": TIME,
            "updated_at": TIME,
            "summary_embedding": [0.0] * 512,
            **more,
        }

    def _chunks_of(self, id: str) -> list[dict[str, Any]]:
        document = self.documents[id]
        return [
            {
                "id": str(uuid5(UUID(id), str(order))),
                "document_id": id,
                "owner_id": OWNER,
                "collection_ids": document["collection_ids"],
                "text": text,
                "metadata": {**document["metadata"], "chunk_order": order},
            }
            for order, text in enumerate(self.texts[id])
        ]

    def search(self, body: Any) -> dict[str, Any]:
        """What a search finds."""
        settings = body["search_settings"]
        words = set(re.findall(r"\w+", body["query"].lower()))
        found = []
        for id in self.documents:
            for chunk in self._chunks_of(id):
                shared = words & set(re.findall(r"\w+", chunk["text"].lower()))
                if shared and (self.leaks or _meets(chunk, settings["filters"], at_top=True)):
                    title = chunk["metadata"].get("title")
                    text = f"Document Title: {title}\n\nText: {chunk['text']}" if title else chunk["text"]
                    found.append({**chunk, "text": text, "score": len(shared) / len(words) / 51})
        found.sort(key=lambda chunk: -chunk["score"])
        return {"chunk_search_results": found[: settings["limit"]], "graph_search_results": []}

    def _rag(self, body: Any) -> tuple[int, Any]:
        found = self.search(body)
        text = self.answer.format(*(chunk["id"][:7] for chunk in found["chunk_search_results"]), *["0000000"] * 3)
        results = {"generated_answer": text, "search_results": found, "metadata": {"model": "scripted"}}
        return 200, {"results": results}


def _meets(chunk: dict[str, Any], filters: dict[str, Any], *, at_top: bool = False) -> bool:
    for name, value in filters.items():
        match name:
            case "$and":
                holds = all(_meets(chunk, each) for each in value)
            case "collection_ids":
                # R2R's issue 2114: all are the account's own, so at the top this keeps nothing out.
                holds = at_top or bool(set(value["$overlap"]) & set(chunk["collection_ids"]))
            case "document_id":
                holds = chunk["document_id"] in value["$in"]
            case _:
                raise AssertionError(f"nobody asked for {name}")
        if not holds:
            return False
    return True


def _missing(what: str) -> tuple[int, Any]:
    return 404, {"message": f"{what} not found.", "error_type": "R2RException"}


def make_token(lifetime: float, number: int, began: float = 1794767876.151153) -> str:
    """A token in the form of a JSON Web Token, good for so many seconds."""
    claims = {"exp": began + lifetime, "iat": began, "jti": number}
    parts = ({"alg": "HS256"}, claims, "signature")
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@asynccontextmanager
async def open_scripted_r2r() -> AsyncIterator[ScriptedR2R]:
    """The server, on a free port."""
    r2r = ScriptedR2R()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (seen := await _receive(reader)) is not None and await _answer(r2r, seen, writer):
                pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=16 * 1024 * 1024)
    r2r.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield r2r
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _receive(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, target, _ = first.split(" ")
    return Seen(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _answer(r2r: ScriptedR2R, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    """Answer a request; whether the connection goes on."""
    r2r.note(seen)
    fault = next((f for f in r2r.faults if seen.target.startswith(f.path) and f.times != 0), None)
    if fault is None:
        return await _send(writer, *r2r.respond(seen))
    if fault.times is not None:
        fault.times -= 1
    if fault.gate is not None:
        await fault.gate.wait()
    served = r2r.respond(seen) if fault.after or not (fault.status or fault.drops or fault.raw) else None
    if fault.stalls:
        for document in r2r.documents.values():
            document["ingestion_status"] = "embedding"
    if fault.drops:
        return False
    if fault.raw is not None:
        writer.write(fault.raw)
        await writer.drain()
        return False
    return await _send(writer, *(served if served and not fault.status else (fault.status, fault.body)))


async def _send(writer: asyncio.StreamWriter, status: int, answer: Any) -> bool:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True
