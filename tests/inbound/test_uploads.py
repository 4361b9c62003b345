"""Files of any size that a JSON message cannot hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from refdesk.documents.file_limits import MAX_FILE_BYTES
from tests.conftest import Serve
from tests.real_files import OFFICE
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

BYTES = {"content-type": "application/octet-stream"}


async def test_an_upload_is_converted_by_its_uri(server: RunningServer) -> None:
    data = (OFFICE / "guide.docx").read_bytes()
    taken = await server.http.post("/api/uploads", params={"name": "../My guide.docx"}, content=data, headers=BYTES)
    assert taken.status_code == 201
    assert taken.json()["size"] == len(data)
    uri = taken.json()["uri"]
    assert uri.endswith("/My%20guide.docx")
    answer = await server.http.post("/api/tools/convert_docx", json={"resource": uri})
    assert answer.json()["structuredContent"]["title"] == "The Guide"


@pytest.mark.slow
async def test_a_file_larger_than_a_message_may_be_is_taken(server: RunningServer) -> None:
    text = b"# Long\n\n```\n" + b"All work and no play makes a dull page.\n" * 110_000 + b"```\n"
    taken = (await server.http.post("/api/uploads?name=long.md", content=text, headers=BYTES)).json()
    answer = await server.http.post(
        "/api/tools/convert_docx", json={"resource": taken["uri"]}, timeout=PATIENCE_SECONDS
    )
    assert answer.json()["structuredContent"]["title"] == "Long"


async def test_a_file_over_the_bound_is_refused_before_it_is_sent(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_FILE_BYTES + 1}\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 MB" in answer


async def test_a_form_is_not_a_file(server: RunningServer) -> None:
    answer = await server.http.post("/api/uploads", content=b"a=b", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert (await server.http.get("/api/uploads")).status_code == 405


async def test_an_upload_needs_a_key_where_keys_are_needed(server_with_keys: RunningServer) -> None:
    assert (await server_with_keys.http.post("/api/uploads", content=b"x", headers=BYTES)).status_code == 401


KEYS = [
    {"key": "plain-key", "user": "p", "tenant": "acme"},
    {"key": "reader-key", "user": "r", "tenant": "acme", "roles": ["reader"]},
    {"key": "docs-key", "user": "d", "tenant": "acme", "toolsets": ["docs"]},
    {"key": "convert-key", "user": "c", "tenant": "acme", "toolsets": ["convert"]},
    {"key": "strange-key", "user": "x", "tenant": "acme", "roles": ["raeder"]},
]


@pytest.fixture(scope="module")
async def server_with_keys(serve_all: Serve) -> AsyncIterator[RunningServer]:
    async with serve_all(auth__required=True, auth__keys=KEYS) as server:
        yield server


@pytest.mark.parametrize(
    ("key", "status"),
    [("plain-key", 201), ("reader-key", 201), ("convert-key", 201), ("docs-key", 403), ("strange-key", 403)],
)
async def test_an_upload_needs_a_key_that_has_a_use_for_it(
    server_with_keys: RunningServer, key: str, status: int
) -> None:
    taken = await server_with_keys.http.post("/api/uploads", content=b"x", headers=BYTES | {"x-api-key": key})
    assert taken.status_code == status, taken.text


async def test_uploads_are_calls_like_others_to_a_rate_limit_and_the_metrics(serve: Serve) -> None:
    async with serve(rate_limits__calls=1) as server:
        assert (await server.http.post("/api/uploads", content=b"x", headers=BYTES)).status_code == 201
        refused = await server.http.post("/api/uploads", content=b"x", headers=BYTES)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        counted = (await server.http.get("/metrics")).text
        assert 'refdesk_calls_total{method="internal/uploads",outcome="ok",tool=""} 1.0' in counted
