"""The requests of TechDoc Genie's documentation, sent by curl to a server with the PostgreSQL manual."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.calls import LOCAL
from refdesk.config.loading import load
from refdesk.config.models import ConvertConfig
from refdesk.engines.base import IN_PROGRESS
from refdesk.ingest.recipes import bring_in
from refdesk.ingest.recipes.recipe import find
from tests.programs import needs
from tests.servers import RunningServer, running_server
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

REQUESTS = json.loads((Path(__file__).parent / "techdoc_requests.json").read_text("utf-8"))


def make_pages(release: str) -> dict[str, str]:
    """A manual with the pages that the requests ask for."""
    index = f"<title>PostgreSQL {release} Documentation</title><body><h1>PostgreSQL {release}</h1><p>Contents."
    return {
        "index.html": index,
        "indexes.html": "<title>Indexes</title><body><h1>Chapter 11. Indexes</h1><h2>11.2. Index Types</h2>"
        f"<p>PostgreSQL {release} has B-tree, Hash, GiST, SP-GiST, GIN and BRIN indexes.",
        "runtime-config-connection.html": "<title>Connections</title><body><h1>20.3. Connections</h1>"
        f"<p>Configure max_connections in postgresql.conf. Its default in {release} is 100.",
        "sql-vacuum.html": f"<title>VACUUM</title><body><h1>VACUUM</h1><p>VACUUM ANALYZE in {release}: explained here.",
    }


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    """A server whose documentation came from installed packages, as `refdesk add postgresql --offline` adds it."""
    folder = tmp_path_factory.mktemp("techdoc")
    given = {"data_dir": str(folder / "data"), "server.port": 0, "embedding.source": "none"}
    recipe = find("postgresql")
    assert recipe is not None
    for release in ("15.20", "9.6", "17.2"):
        place = folder / f"system/usr/share/doc/postgresql-doc-{release}/html"
        place.mkdir(parents=True)
        for name, text in make_pages(release).items():
            (place / name).write_text(text, "utf-8")
    async with running_server(load(None, {}, given)) as server:
        engine = server.desk.engine
        for version in ("15", "17", "9"):
            brought = await bring_in(
                recipe, engine, LOCAL.tenant, ConvertConfig(), folder / "recipes", version=version,
                offline=True, system=folder / "system",
            )  # fmt: skip
            ids: list[str] = [*brought.new]
            with anyio.fail_after(PATIENCE_SECONDS):
                while ids:
                    statuses = await engine.wait(LOCAL.tenant, ids, seconds=1)
                    ids = [status.id for status in statuses if status.status in IN_PROGRESS]
        yield server


Call = Callable[..., Awaitable[Any]]


@pytest.fixture
def call(server: RunningServer) -> Call:
    async def call(method: str, **params: Any) -> Any:
        return (await server.call(method, params))["result"]

    return call


async def curl(server: RunningServer, request: Mapping[str, Any]) -> Any:
    """The answer to a request, sent with its headers and no others of our own."""
    headers = [part for header in request["headers"] for part in ("-H", header)]
    command = ["curl", "-s", "-X", "POST", f"{server.url}/mcp", *headers, "-d", json.dumps(request["body"])]
    return json.loads((await anyio.run_process(command)).stdout)


@needs("curl")
async def test_examples_work_as_they_are_written(server: RunningServer) -> None:
    answers = [await curl(server, request) for request in REQUESTS]

    assert [answer["id"] for answer in answers] == ["ex-1", "ex-2", "ex-3", "ex-4"]
    listed, found, found_anywhere, read = (answer["result"] for answer in answers)

    tools = {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
    assert {"postgresql", "postgresql@15", "postgresql-15", "all"} <= set(
        tools["search_documentation"]["properties"]["doc_type"]["enum"]
    )
    assert tools["search_documentation"]["required"] == ["query"]
    assert tools["get_document"]["required"] == ["document_id"]

    best = found["content"][0]
    assert "default in 17.2 is 100" in best["text"]
    assert best["_meta"]["metadata"]["source"] == "postgresql-17/runtime-config-connection.html"
    assert best["_meta"]["metadata"]["version"] == "17"
    assert {"page", "section"} <= set(best["_meta"]["metadata"])
    assert best["_meta"]["score"] > 0
    assert len(found["content"]) <= 3

    assert any("VACUUM ANALYZE" in item["text"] for item in found_anywhere["content"])

    (document,) = read["content"]
    assert "17.2 has B-tree" in document["text"]
    assert document["_meta"]["metadata"]["source"] == "postgresql-17/indexes.html"


@needs("curl")
async def test_example_with_a_key_works_and_the_others_are_rejected(tmp_path: Path) -> None:
    environ = {"MCP_AUTH_REQUIRED": "true", "MCP_API_KEY": "my-secret-key"}
    given = {"data_dir": str(tmp_path), "server.port": 0, "embedding.source": "none"}
    async with running_server(load(None, environ, given)) as server:
        for request in REQUESTS:
            answer = await curl(server, request)
            if len(request["headers"]) > 1:
                assert answer["id"] == "ex-3"
                assert not answer["result"].get("isError")
            else:
                assert answer == {"detail": "Invalid API key"}


@pytest.mark.parametrize(
    ("name", "release"),
    [("postgresql", "17.2"), ("PostgreSQL", "17.2"), ("postgresql@15", "15.20"), ("postgresql-15", "15.20"),
     ("postgresql@17", "17.2"), ("postgresql@9", "9.6")],
)  # fmt: skip
async def test_every_name_of_a_version_reads_its_documents(call: Call, name: str, release: str) -> None:
    id = f"{name}/indexes.html"
    texts = [
        (await call("tools/call", name="get_document", arguments={"document_id": id}))["content"][0]["text"],
        (await call("tools/call", name="read_doc_section", arguments={"doc_id": id, "section_id": "11-2-index-types"}))[
            "content"
        ][0]["text"],
        (await call("resources/read", uri=f"techdoc://{id}"))["contents"][0]["text"],
        (await call("resources/read", uri=f"r2r://document/{id}"))["contents"][0]["text"],
    ]
    assert all(f"PostgreSQL {release} has" in text for text in texts), texts

    query = {"query": "default of max_connections", "collection_id": name, "limit": 3}
    hits = (await call("tools/call", name="r2r_search", arguments=query))["structuredContent"]["results"]
    version = release.partition(".")[0]
    assert {hit["document_id"].partition("/")[0] for hit in hits} == {f"postgresql-{version}"}


async def test_contents_are_a_resource_for_each_version(call: Call) -> None:
    listed = {entry["uri"]: entry for entry in (await call("resources/list"))["resources"]}
    uris = ["techdoc://postgresql/docs", "techdoc://postgresql@15/docs", "techdoc://postgresql@9/docs"]
    assert [uri for uri in listed if "postgresql" in uri] == [uris[1], uris[0], uris[2]]
    assert listed["techdoc://postgresql/docs"]["name"] == "postgresql-17"

    more = ["techdoc://postgresql-15/postgresql-15", "techdoc://postgresql@17/docs"]
    for uri, version in zip([*uris, *more], ("17", "15", "9", "15", "17"), strict=True):
        (contents,) = (await call("resources/read", uri=uri))["contents"]
        assert f"(techdoc://postgresql-{version}/indexes.html)" in contents["text"]


async def test_completions_know_families_and_versions(call: Call) -> None:
    names = ["postgresql", "postgresql@15", "postgresql-15"]
    for ref, argument in (
        ({"type": "ref/resource", "uri": "techdoc://{doc_type}/{path}"}, "doc_type"),
        ({"type": "ref/prompt", "name": "answer_from_docs"}, "doc_type"),
        ({"type": "ref/prompt", "name": "onboard_me"}, "collection_id"),
    ):
        values = await call("completion/complete", ref=ref, argument={"name": argument, "value": "postgres"})
        assert set(names) < set(values["completion"]["values"])

    paths = await call(
        "completion/complete",
        ref={"type": "ref/resource", "uri": "techdoc://{doc_type}/{path}"},
        argument={"name": "path", "value": "ind"},
        context={"arguments": {"doc_type": "postgresql@15"}},
    )
    assert paths["completion"]["values"] == ["index.html", "indexes.html"]


async def test_documents_are_never_added_to_the_newest_version(server: RunningServer, call: Call) -> None:
    note = {"text": "The wombats sleep.", "title": "Note", "run_async": False}
    own = await call("tools/call", name="r2r_ingest_document", arguments={**note, "collection_id": "postgresql"})
    exact = await call("tools/call", name="r2r_ingest_document", arguments={**note, "collection_id": "postgresql@15"})
    assert own["structuredContent"]["collection_id"] == "postgresql"
    assert exact["structuredContent"]["collection_id"] == "postgresql-15"
    read = await call("tools/call", name="get_document", arguments={"document_id": "postgresql/note"})
    assert "wombats" in read["content"][0]["text"]
    assert await server.desk.engine.delete_collection(LOCAL.tenant, "postgresql")
