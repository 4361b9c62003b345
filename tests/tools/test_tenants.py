"""Two tenants with the same documents under the same ids: whatever is asked, neither sees anything of the other.

Every tool, resource, template and prompt of a real server is walked. One that is new fails here until it is entered in
the tables below.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from refdesk.app import open_desk
from refdesk.calls import TenantId
from refdesk.config.loading import load
from refdesk.config.models import Config
from tests.real_files import FILES
from tests.servers import RunningServer, running_server

pytestmark = pytest.mark.anyio

Arguments = dict[str, Any]

SECRETS = """# Secrets

The secret colour of the house is {word}. Nobody else knows the secret colour.

## Where it is kept

The tin of {word} paint stands in the cellar behind the secret door.
"""
PLANS = "# Plans\n\nThe harbour is rebuilt in spring, with piers of {word} stone.\n"


@dataclass
class Party:
    """A tenant, by its key; what it has, and the word that is in all of it and in nothing else."""

    key: str
    tenant: str
    word: str
    handle: str = ""
    """A converted document."""
    upload: str = ""
    """An uploaded file."""

    @property
    def private(self) -> str:
        """A collection that the other has not."""
        return f"{self.tenant}-private"


@dataclass(frozen=True)
class Calls:
    """How a tool is called: about what both have, and about what only one of them has."""

    own: Callable[[Party], Sequence[Arguments]]
    foreign: Callable[[Party], Sequence[Arguments]] = field(default=lambda _: [])
    """With ids of the party, to be called by the other."""
    tells: bool = True
    """Whether an answer about what is one's own holds its word."""


SECRETS_ID = "handbook/secrets"


def converting(file: str) -> Calls:
    """The calls of a tool that converts."""
    return Calls(
        lambda party: [{"file_path": file}, {"resource": party.upload}],
        lambda party: [{"resource": party.upload}],
        tells=False,
    )


EXPORT = Calls(lambda party: [{"handle": party.handle}], lambda party: [{"handle": party.handle}])

TOOLS: Mapping[str, Calls] = {
    "r2r_search": Calls(
        lambda party: (
            [
                {"query": "the secret colour", "collection_id": where, "search_mode": mode}
                for where in ("handbook", "all", ["handbook", "refdesk"])
                for mode in ("basic", "advanced")
            ]
            + [{"query": "the secret colour", "filters": {"title": {"$ilike": "%"}}, "collection_id": "all"}]
        ),
        lambda party: [
            {"query": "harbour piers", "collection_id": party.private},
            {"query": "harbour piers", "collection_id": ["handbook", party.private]},
        ],
    ),
    "r2r_rag_query": Calls(
        lambda party: [{"question": "What is the secret colour of the house?", "collection_id": "handbook"}],
        lambda party: [{"question": "Of what stone are the piers?", "collection_id": party.private}],
    ),
    "r2r_ingest_document": Calls(
        lambda party: [
            {
                "text": SECRETS.format(word=party.word),
                "title": "Secrets",
                "collection_id": "handbook",
                "run_async": False,
            },
            {"file_path": party.handle, "collection_id": "handbook", "run_async": False},
            {"file_path": party.upload, "collection_id": "handbook", "run_async": False},
        ],
        lambda party: [
            {"file_path": handle, "collection_id": "taken", "run_async": False}
            for handle in (party.handle, party.upload)
        ],
        tells=False,
    ),
    "r2r_list_documents": Calls(
        lambda party: [{}, {"collection_id": "handbook"}, {"collection_id": party.private}],
        lambda party: [{"collection_id": party.private}],
        tells=False,
    ),
    "r2r_monitor_task": Calls(
        lambda party: [{"document_id": SECRETS_ID}],
        lambda party: [{"document_id": f"{party.private}/plans"}],
        tells=False,
    ),
    "r2r_list_collections": Calls(lambda party: [{}, {"limit": 100}], tells=False),
    "search_documentation": Calls(
        lambda party: [{"query": "the secret colour", "doc_type": "handbook"}, {"query": "the secret colour"}],
        lambda party: [{"query": "harbour piers", "doc_type": party.private}],
    ),
    "get_document": Calls(
        lambda party: [{"document_id": SECRETS_ID}], lambda party: [{"document_id": f"{party.private}/plans"}]
    ),
    "read_doc_section": Calls(
        lambda party: [
            {"doc_id": SECRETS_ID, "section_id": "secrets"},
            {"doc_id": party.handle, "section_id": "secrets"},
        ],
        lambda party: [{"doc_id": id, "section_id": "secrets"} for id in (party.handle, f"{party.private}/plans")],
    ),
    "read_doc_pages": Calls(
        lambda party: [{"doc_id": SECRETS_ID, "page_start": 1, "page_end": 1}],
        lambda party: [
            {"doc_id": id, "page_start": 1, "page_end": 1} for id in (party.handle, f"{party.private}/plans")
        ],
    ),
    "read_doc_metadata": Calls(
        lambda party: [{"doc_id": SECRETS_ID}, {"doc_id": party.handle}],
        lambda party: [{"doc_id": id} for id in (party.handle, f"{party.private}/plans")],
        tells=False,
    ),
    "doc_local_search": Calls(
        lambda party: [{"doc_id": SECRETS_ID, "query": "colour"}, {"doc_id": party.handle, "query": "colour"}],
        lambda party: [{"doc_id": id, "query": "colour stone"} for id in (party.handle, f"{party.private}/plans")],
    ),
    "read_chunk_window": Calls(
        lambda party: [{"doc_id": SECRETS_ID, "anchor_chunk_id": f"{SECRETS_ID}#c1", "radius": 2}],
        lambda party: [
            {"doc_id": f"{party.private}/plans", "anchor_chunk_id": f"{party.private}/plans#c1", "radius": 2},
            {"doc_id": party.handle, "anchor_chunk_id": "c1", "radius": 2},
        ],
    ),
    "list_available_tools": Calls(lambda party: [{}], tells=False),
    "convert_pdf": converting("pdf/manual.pdf"),
    "convert_docx": converting("office/guide.docx"),
    "convert_xlsx": converting("office/book.xlsx"),
    "convert_pptx": converting("office/deck.pptx"),
    "convert_url": Calls(lambda party: [{"url": "http://127.0.0.1:9/"}], tells=False),
    "export_markdown": EXPORT,
    "export_html": EXPORT,
    "export_json": EXPORT,
}

TEMPLATES: Mapping[str, Callable[[Party], Sequence[str]]] = {
    "r2r://collection/{collection_id}": lambda party: [
        "r2r://collection/handbook",
        f"r2r://collection/{party.private}",
    ],
    "r2r://document/{+document_id}{?section_id}": lambda party: [
        f"r2r://document/{SECRETS_ID}",
        f"r2r://document/{party.private}/plans",
        f"r2r://document/{party.private}/plans?section_id=plans",
    ],
    "techdoc://{doc_type}/{path}": lambda party: [
        f"techdoc://{SECRETS_ID}",
        f"techdoc://{party.private}/{party.private}",
        f"techdoc://{party.private}/plans",
    ],
    "document://{handle}/{form}": lambda party: [
        f"document://{party.handle}/{form}" for form in ("markdown", "html", "json")
    ],
}

PROMPTS: Mapping[str, Callable[[Party], Sequence[Mapping[str, str]]]] = {
    "answer_from_docs": lambda party: [{"question": "Which colour?", "doc_type": name} for name in _sets(party)],
    "onboard_me": lambda party: [{"collection_id": name} for name in (*_sets(party), "all")],
    "what_changed": lambda party: [{"collection_id": name} for name in (*_sets(party), "all")],
}


def _sets(party: Party) -> tuple[str, str]:
    return "handbook", party.private


ACME = Party("key-of-the-first-tenant", "acme", "vermilion")
BETA = Party("key-of-the-other-tenant", "beta", "cerulean")
SERVICE = "key-of-a-service-that-acts-for-others"
PAIRS = [(ACME, BETA), (BETA, ACME)]
KEYS = [
    {"key": ACME.key, "tenant": ACME.tenant, "user": "same-name"},
    {"key": BETA.key, "tenant": BETA.tenant, "user": "same-name"},
    {"key": SERVICE, "tenant": "services", "user": "service", "roles": ["service"]},
]


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    """A server at which both parties have brought in the same, but for a word, and something of their own."""
    folder = tmp_path_factory.mktemp("tenants")
    shutil.copytree(FILES, folder / "files")
    given = {
        "data_dir": str(folder / "data"), "server.port": 0, "auth.required": True, "auth.keys": KEYS,
        "convert.roots": [str(folder / "files")],
    }  # fmt: skip
    async with running_server(load(None, {}, given)) as server:
        for party in (ACME, BETA):
            await settle(server, party)
        yield server


async def settle(server: RunningServer, party: Party) -> None:
    for text, collection in ((SECRETS, "handbook"), (PLANS, party.private)):
        title = text.split("\n")[0].removeprefix("# ")
        asked = {"text": text.format(word=party.word), "title": title, "collection_id": collection, "run_async": False}
        assert not (await call(server, party, "r2r_ingest_document", asked)).get("isError")
    body = SECRETS.format(word=party.word).encode()
    headers = {"content-type": "application/octet-stream", "x-api-key": party.key}
    taken = await server.http.post("/api/uploads?name=secrets.md", content=body, headers=headers)
    party.upload = taken.json()["uri"]
    converted = await call(server, party, "convert_docx", {"resource": party.upload})
    party.handle = converted["structuredContent"]["handle"]


async def send(server: RunningServer, party: Party, method: str, params: Any = None) -> Any:
    """The whole answer to a request, an error too."""
    return await server.call(method, params or {}, x_api_key=party.key)


async def call(server: RunningServer, party: Party, tool: str, arguments: Arguments) -> dict[str, Any]:
    """The result of a tool, or the error of the protocol."""
    answer = await send(server, party, "tools/call", {"name": tool, "arguments": arguments})
    result: dict[str, Any] = answer.get("result") or {"isError": True, **answer["error"]}
    return result


async def execute(server: RunningServer, party: Party, tool: str, arguments: Arguments) -> dict[str, Any]:
    """As above, through the door for services."""
    user = {"user_id": "same-name", "tenant_id": party.tenant}
    body = {"tool_name": tool, "arguments": arguments, "user": user}
    answer = await server.http.post("/internal/mcp/execute", json=body, headers={"x-api-key": SERVICE})
    result: dict[str, Any] = answer.json()
    return {"isError": result["status"] == "error", **result, "trace_id": ""}


def require_nothing_of(other: Party, answer: Any, asked: Any) -> None:
    """Neither its word nor a name of its own, unless the caller said it."""
    told, said = json.dumps(answer).lower(), json.dumps(asked).lower()
    for mark in (other.word, other.private, other.handle, other.upload):
        if mark not in said:
            assert mark not in told, (asked, answer)
    assert other.word not in told, (asked, answer)


def missing(value: Any, party: Party) -> Any:
    """The same with ids of nothing at all, of the same length."""
    written = json.dumps(value)
    for mark in (party.handle, party.upload.split("/")[2], party.private):
        written = written.replace(mark, f"{mark[:4]}{'a' * 8}{mark[12:]}" if mark != party.private else "none-private")
    return json.loads(written)


async def test_every_tool_has_an_entry_here(settings: Callable[..., Config]) -> None:
    async with open_desk(settings()) as desk:
        assert set(desk.registry.tools) == set(TOOLS)


@pytest.mark.parametrize("door", [call, execute])
@pytest.mark.parametrize("tool", TOOLS)
async def test_a_tool_tells_a_tenant_nothing_of_the_other(server: RunningServer, tool: str, door: Any) -> None:
    calls = TOOLS[tool]
    for party, other in PAIRS:
        for arguments in calls.own(party):
            answer = await door(server, party, tool, arguments)
            require_nothing_of(other, answer, arguments)
            if calls.tells:
                assert party.word in json.dumps(answer), (arguments, answer)
        for arguments in calls.foreign(other):
            answer = await door(server, party, tool, arguments)
            assert answer["isError"], (arguments, answer)
            require_nothing_of(other, answer, arguments)
            never = await door(server, party, tool, missing(arguments, other))
            assert missing(answer, other) == never, "another tenant's answers otherwise than what is not there"


async def test_every_resource_is_the_callers_own(server: RunningServer) -> None:
    listed = {}
    for party, other in PAIRS:
        resources = (await send(server, party, "resources/list"))["result"]["resources"]
        require_nothing_of(other, resources, "")
        listed[party.tenant] = [entry["uri"] for entry in resources]
        require_nothing_of(other, await send(server, party, "tools/list"), "")
    for party, other in PAIRS:
        for uri in listed[party.tenant] + listed[other.tenant]:
            require_nothing_of(other, await send(server, party, "resources/read", {"uri": uri}), uri)
    assert any(ACME.private in uri for uri in listed["acme"])


async def test_every_template_leads_to_the_callers_own(server: RunningServer) -> None:
    templates = (await send(server, ACME, "resources/templates/list"))["result"]["resourceTemplates"]
    assert {template["uriTemplate"] for template in templates} == set(TEMPLATES)
    for template in TEMPLATES:
        for party, other in PAIRS:
            for uri in TEMPLATES[template](party):
                answer = await send(server, party, "resources/read", {"uri": uri})
                assert "result" in answer, (uri, answer)
                require_nothing_of(other, answer, uri)
            for uri in TEMPLATES[template](other):
                require_nothing_of(other, await send(server, party, "resources/read", {"uri": uri}), uri)


async def test_every_prompt_is_made_of_the_callers_own(server: RunningServer) -> None:
    prompts = (await send(server, ACME, "prompts/list"))["result"]["prompts"]
    assert {prompt["name"] for prompt in prompts} == set(PROMPTS)
    for name in PROMPTS:
        for party, other in PAIRS:
            for given in (*PROMPTS[name](party), *PROMPTS[name](other)):
                answer = await send(server, party, "prompts/get", {"name": name, "arguments": given})
                require_nothing_of(other, answer, given)


async def test_every_completion_names_the_callers_own(server: RunningServer) -> None:
    prompts = (await send(server, ACME, "prompts/list"))["result"]["prompts"]
    asked = [
        ({"type": "ref/prompt", "name": prompt["name"]}, argument["name"])
        for prompt in prompts
        for argument in prompt["arguments"]
    ]
    names = ("collection_id", "document_id", "section_id", "doc_type", "path", "handle")
    asked += [({"type": "ref/resource", "uri": template}, name) for template in TEMPLATES for name in names]
    told = ""
    for party, other in PAIRS:
        for ref, name in asked:
            for value in ("", other.tenant[0], other.private, f"{other.private}/"):
                context = {"arguments": {"document_id": f"{other.private}/plans", "doc_type": other.private}}
                params = {"ref": ref, "argument": {"name": name, "value": value}, "context": context}
                answer = await send(server, party, "completion/complete", params)
                told += json.dumps(answer)
                require_nothing_of(other, answer, "")
    assert ACME.private in told


async def test_a_history_holds_the_callers_own_searches(server: RunningServer) -> None:
    for party, other in PAIRS:
        await call(server, party, "r2r_search", {"query": f"a {party.word} fence", "collection_id": "handbook"})
        answer = await send(server, party, "resources/read", {"uri": "r2r://search/history"})
        assert party.word in json.dumps(answer)
        require_nothing_of(other, answer, "")


@pytest.mark.parametrize("tool", ["r2r_search", "r2r_rag_query", "search_documentation", "r2r_list_documents"])
async def test_what_is_kept_for_one_is_not_given_to_the_other(server: RunningServer, tool: str) -> None:
    for arguments in TOOLS[tool].own(ACME):
        for party in (ACME, ACME, BETA, BETA, ACME, BETA):
            other = BETA if party is ACME else ACME
            require_nothing_of(other, await call(server, party, tool, arguments), arguments)


async def test_what_one_changes_or_removes_stays_with_the_other(server: RunningServer) -> None:
    before = await list_visible(server, BETA)
    secrets = {"title": "Ledger", "collection_id": "handbook", "run_async": False}
    await call(server, ACME, "r2r_ingest_document", secrets | {"text": f"# Ledger\n\n{ACME.word} ledger"})
    assert await list_visible(server, BETA) == before
    assert await server.desk.engine.delete(TenantId("acme"), SECRETS_ID)
    assert (await call(server, ACME, "get_document", {"document_id": SECRETS_ID}))["isError"]
    assert await list_visible(server, BETA) == before
    await settle(server, ACME)
    assert await list_visible(server, BETA) == before


async def list_visible(server: RunningServer, party: Party) -> list[Any]:
    """List what a party sees of the documents of both, with counts."""
    asked: list[tuple[str, Arguments]] = [
        ("get_document", {"document_id": SECRETS_ID}),
        ("r2r_list_documents", {"collection_id": "handbook"}),
        ("r2r_list_collections", {}),
        ("search_documentation", {"query": "the secret colour", "doc_type": "handbook"}),
    ]
    return [await call(server, party, tool, arguments) for tool, arguments in asked]


async def test_a_key_without_the_role_cannot_act_for_the_other(server: RunningServer) -> None:
    for party, other in PAIRS:
        user = {"user_id": "same-name", "tenant_id": other.tenant}
        for tool, calls in TOOLS.items():
            for arguments in calls.own(other):
                body = {"tool_name": tool, "arguments": arguments, "user": user}
                answer = await server.http.post("/internal/mcp/execute", json=body, headers={"x-api-key": party.key})
                assert answer.status_code == 403
                require_nothing_of(other, answer.json(), arguments)


async def test_a_window_for_services_keeps_to_the_tenant_it_names(server: RunningServer) -> None:
    for party, other in PAIRS:
        asked = {"doc_id": SECRETS_ID, "anchor_chunk_id": f"{SECRETS_ID}#c1", "radius": 3, "tenant_id": party.tenant}
        window = "/internal/retrieval/chunks/window"
        answer = await server.http.post(window, json=asked, headers={"x-api-key": SERVICE})
        assert party.word in answer.text
        require_nothing_of(other, answer.json(), "")
        refused = await server.http.post(window, json=asked, headers={"x-api-key": other.key})
        assert refused.status_code == 403
