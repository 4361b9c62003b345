"""Tenants and projects under one service account, which owns all that R2R holds for them: none sees another's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from refdesk.config.models import Config
from tests.r2r.lab import Account, Lab
from tests.servers import RunningServer, running_server

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(400)]

WORDS = {"acme": "vermilion", "rival": "turquoise"}
"""What the tenants' documents hold that nobody else's do; each tenant's key is its name."""

PROJECTS = {"harbour": "granite", "orchard": "quince"}
"""Likewise, of two projects of one tenant."""


def secrets(word: str) -> str:
    return f"# Secrets\n\nThe secret colour of the house is {word}. Nobody else knows the secret colour.\n"


def key_of(tenant: str) -> str:
    return f"{tenant}-key-0123456789abcdef"


@pytest.fixture
async def server(r2r: Lab, make_config: Callable[..., Config]) -> AsyncIterator[RunningServer]:
    """A desk with two tenants who have a document of the same name in a collection of the same name."""
    keys = [{"key": key_of(tenant), "tenant": tenant, "user": f"{tenant}-user"} for tenant in WORDS]
    async with running_server(make_config(r2r.url, auth__required=True, auth__keys=keys)) as server:
        for tenant, word in WORDS.items():
            await bring(server, tenant, secrets(word), "shared-name")
        yield server
        # Withheld is good, but nothing that has to be withheld is to be asked for in the first place.
        assert server.desk.metrics.registry.get_sample_value("refdesk_r2r_foreign_chunks_total") == 0


async def call(server: RunningServer, tenant: str, tool: str, **arguments: Any) -> Any:
    """The result of a call of a tool."""
    params = {"name": tool, "arguments": arguments}
    answer = await server.call("tools/call", params, authorization=f"Bearer {key_of(tenant)}")
    assert "result" in answer, answer
    return answer["result"]


async def ask(server: RunningServer, tenant: str, tool: str, **arguments: Any) -> Any:
    """What a tool that succeeds has found."""
    result = await call(server, tenant, tool, **arguments)
    assert not result.get("isError"), result
    return result["structuredContent"]


async def bring(server: RunningServer, tenant: str, text: str, collection: str, title: str = "Secrets") -> None:
    given = {"text": text, "title": title, "collection_id": collection, "run_async": False}
    assert (await ask(server, tenant, "r2r_ingest_document", **given))["status"] == "success"


@pytest.mark.parametrize(("tenant", "other"), [("acme", "rival"), ("rival", "acme")])
async def test_a_tenant_finds_its_own_and_nothing_of_the_other(server: RunningServer, tenant: str, other: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("r2r_search", {"query": f"secret colour {WORDS[other]}", "collection_id": "all", "limit": 100}),
        ("r2r_search", {"query": f"secret colour {WORDS[other]}", "collection_id": "shared-name", "limit": 100}),
        ("r2r_search", {"query": WORDS[other], "search_mode": "basic"}),
        ("r2r_rag_query", {"question": "What is the secret colour of the house?"}),
        ("r2r_rag_query", {"question": "What is the secret colour of the house?", "collection_id": "all"}),
        ("r2r_list_documents", {}),
        ("r2r_list_collections", {}),
        ("search_documentation", {"query": f"secret colour {WORDS[other]}"}),
    ]
    for tool, arguments in asked:
        result = await call(server, tenant, tool, **arguments)
        assert not result.get("isError"), result
        assert WORDS[other] not in json.dumps(result), tool
    found = await ask(server, tenant, "r2r_search", query="secret colour", collection_id="all")
    assert WORDS[tenant] in found["results"][0]["text"]
    assert (await ask(server, tenant, "r2r_list_documents"))["total"] == 1


@pytest.mark.parametrize(("project", "other"), [("harbour", "orchard"), ("orchard", "harbour")])
async def test_a_search_in_one_project_finds_nothing_of_another(
    server: RunningServer, project: str, other: str
) -> None:
    for name, word in PROJECTS.items():
        await bring(server, "acme", secrets(word), name)
    query = "What is the secret colour of the house?"
    told = json.dumps(
        [
            await ask(server, "acme", "r2r_search", query=query, collection_id=project, limit=100),
            await ask(server, "acme", "r2r_rag_query", question=query, collection_id=project),
            await ask(server, "acme", "r2r_list_documents", collection_id=project),
        ]
    )
    assert PROJECTS[project] in told
    assert PROJECTS[other] not in told


async def test_where_r2r_itself_would_leak_we_do_not(r2r: Lab, account: Account, server: RunningServer) -> None:
    """R2R's issue 2114: the filter of its documentation lets the owner of a document see it everywhere."""
    collections = r2r.ask(account, "GET", "/collections", params={"limit": 100})
    (ours, *_) = [each["id"] for each in collections if "shared-name" in each["name"]]
    naive = {"filters": {"collection_ids": {"$overlap": [ours]}}, "limit": 100}
    body = {"query": "secret colour", "search_settings": naive}
    leaked = r2r.ask(account, "POST", "/retrieval/search", json=body)["chunk_search_results"]
    assert all(any(word in chunk["text"] for chunk in leaked) for word in WORDS.values())
    for tenant, other in (("acme", "rival"), ("rival", "acme")):
        found = await ask(server, tenant, "r2r_search", query="secret colour", collection_id="shared-name", limit=100)
        assert found["count"] > 0
        assert not any(WORDS[other] in hit["text"] for hit in found["results"])


async def test_another_tenants_document_and_collection_do_not_exist(server: RunningServer) -> None:
    await bring(server, "rival", secrets("indigo"), "private", title="Ledger 4711")
    asked = {
        "r2r_search": {"query": "secret colour", "collection_id": "{}"},
        "r2r_rag_query": {"question": "What is the secret colour?", "collection_id": "{}"},
        "r2r_list_documents": {"collection_id": "{}"},
        "r2r_monitor_task": {"document_id": "{}/ledger-4711"},
        "get_document": {"document_id": "{}/ledger-4711"},
    }
    for tool, arguments in asked.items():
        told: dict[str, str] = {}
        for place in ("private", "nowhere"):
            result = await call(server, "acme", tool, **{name: text.format(place) for name, text in arguments.items()})
            assert result["isError"]
            told[place] = json.dumps(result).replace(place, "…")
        assert told["private"] == told["nowhere"], tool
