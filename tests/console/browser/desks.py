"""A `refdesk serve` for a browser to look at; plain threads, as Playwright's own loop is the only one here."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from platformdirs import user_cache_path

from refdesk.policy.keys import KeyFile, StoredKey, digest, new_key
from tests.processes import REFDESK, environment
from tests.waiting import PATIENCE_SECONDS, eventually_sync

HANDBOOK = """# Deploy handbook

How the team brings a release to production.

## Roll back a release

Run `deploy rollback v41` and wait for the **green light**. A rollback takes about two minutes.

- Tell the channel first.
- Then run the command.

## Rotate the signing keys

Signing keys are rotated every ninety days with `deploy keys rotate`.

### Who may rotate

Only the release captain rotates the keys.

## Limits

| Limit | Value |
| --- | --- |
| Releases a day | 12 |
| Minutes for a rollback | 2 |
"""
"""Small enough to read whole, with every kind of block that the reader draws."""

PEOPLE = {"olga": ("default", "admin"), "rita": ("default", "reader"), "wim": ("builds", "writer")}
"""Who has a key of a desk that wants one: tenant and role."""


@dataclass
class DeskProcess:
    """A desk that is up, and calls to it."""

    process: subprocess.Popen[bytes]
    key: str = ""
    url: str = ""
    log: list[dict[str, Any]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Call it as the console does."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def tool(self, name: str, **arguments: object) -> dict[str, Any]:
        """A tool's structured answer; an error result fails the test."""
        answer = self.post(f"/api/tools/{name}", arguments)
        assert not answer.get("isError"), answer["content"]
        content: dict[str, Any] = answer["structuredContent"]
        return content

    def add(self, title: str, text: str, collection: str, **metadata: object) -> str:
        """Add a text to a collection and wait until it can be searched; return its id."""
        added = self.tool(
            "r2r_ingest_document", title=title, text=text, collection_id=collection, metadata=metadata, run_async=False
        )
        return str(added["document_id"])

    def is_indexed(self, collection: str) -> bool:
        """Whether a collection has documents and all are indexed, and embedded where the desk has a model."""
        documents, pending = (
            self.post("/api/console/documents", {"collection": collection, "status": status, "limit": 1})["total"]
            for status in ("all", "pending")
        )
        return bool(documents > 0 and pending == 0)

    def upload(self, name: str, content: str, collection: str) -> str:
        """Bring a file in as the console does and wait until it can be searched; its id."""
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.url}/api/uploads?name={quote(name)}", content.encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            uri = json.load(response)["uri"]
        added = self.tool("r2r_ingest_document", file_path=uri, collection_id=collection, run_async=False)
        return str(added["document_id"])

    def read_log(self, stream: IO[bytes]) -> None:
        """Take in every line: a server whose log nobody reads would stop to write it."""
        for line in stream:
            entry = json.loads(line)
            self.log.append(entry)
            if entry["event"] == "ready":
                self.url = entry["endpoint"].removesuffix("/mcp")
                self.ready.set()
        self.ready.set()


@contextmanager
def desk_process(
    folder: Path, *, key: str = "", port: int = 0, model: bool = True, **more: str
) -> Iterator[DeskProcess]:
    """Start one on a free port; killed at the end if it does not stop by itself.

    Without a model it has nothing to embed, and so more time for what is looked at. All share the cache of whoever
    runs the tests, so that the manual is indexed once for all.
    """
    more = {"XDG_CACHE_HOME": str(user_cache_path())} | ({} if model else {"REFDESK__EMBEDDING__SOURCE": "none"}) | more
    process = subprocess.Popen(
        [*REFDESK, "serve", "--port", str(port), "--data", str(folder / "data")],
        env=environment(folder, **more), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    desk = DeskProcess(process, key)
    reading = threading.Thread(target=desk.read_log, args=(process.stderr,))
    reading.start()
    try:
        assert desk.ready.wait(PATIENCE_SECONDS), "the desk took too long to start"
        assert desk.url, "the desk ended before it was ready"
        eventually_sync(lambda: desk.is_indexed("refdesk"))
        yield desk
    finally:
        stop(process)
        reading.join(10)
        process.stderr.close()


@dataclass
class AuthDesk:
    """A desk that wants a key, and everybody's."""

    desk: DeskProcess
    keys: dict[str, str]


@contextmanager
def run_auth_desk(folder: Path) -> Iterator[AuthDesk]:
    """Start one that lets in the PEOPLE; it is itself called by an administrator."""
    (folder / "data").mkdir()
    keys = {name: _key(folder / "data", name, tenant, role) for name, (tenant, role) in PEOPLE.items()}
    with desk_process(folder, key=keys["olga"], REFDESK__AUTH__REQUIRED="true", model=False) as desk:
        yield AuthDesk(desk, keys)


def _key(data: Path, name: str, tenant: str, role: str) -> str:
    """A key in the desk's own file, as `refdesk keys make` puts it there."""
    key = new_key()
    KeyFile(data / "keys.json").add(
        StoredKey(
            name=name, sha256=digest(key).hex(), user=name, tenant=tenant, roles=(role,), created=datetime.now(UTC)
        )
    )
    return key


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a desk in order, or by force when it does not."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
