"""Other servers' documentation in `search_documentation`, with real servers behind a real desk."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.app import Desk
from refdesk.calls import ANONYMOUS, Answer, Caller
from refdesk.errors import InvalidArguments
from tests.downstream.servers import ROOT
from tests.tools.knowing import open_indexed_desk
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

SCRIPT = ROOT / "tests" / "downstream" / "servers" / "docs_source.py"
QUERY = "How do I require API keys?"


class Source:
    """A server of documentation, whose answers a test decides on."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = folder / f"{name}.json"
        self.says({"title": f"Keys in {name}", "url": f"https://{name}.example/keys", "text": f"{name} has keys."})

    def says(self, *hits: dict[str, Any], **more: Any) -> None:
        self._file.write_text(json.dumps({"result": {"structuredContent": {"results": hits}}, **more}), "utf-8")

    def does(self, **script: Any) -> None:
        self._file.write_text(json.dumps(script), "utf-8")

    @property
    def requests(self) -> list[dict[str, Any]]:
        asked = Path(f"{self._file}.asked")
        return list(map(json.loads, asked.read_text("utf-8").splitlines())) if asked.exists() else []

    def settings(self, **docs: Any) -> dict[str, Any]:
        arguments = [str(SCRIPT), str(self._file)]
        return {"command": sys.executable, "args": arguments, "docs": {"timeout_seconds": PATIENCE_SECONDS, **docs}}


Open = Callable[..., AbstractAsyncContextManager[Desk]]


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Source, Source]:
    return Source(tmp_path, "alpha"), Source(tmp_path, "beta")


@pytest.fixture
def open_with_servers(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_with_servers(servers: dict[str, Any], **settings: Any) -> AsyncIterator[Desk]:
        async with open_indexed_desk(tmp_path / "data", mcpServers=servers, **settings) as desk:
            await wait_for_servers(desk, servers)
            yield desk

    return open_with_servers


async def wait_for_servers(desk: Desk, servers: Iterable[str]) -> None:
    """Wait until the servers are available."""
    changed = anyio.Event()
    desk.registry.listen(lambda event: changed.set())
    with anyio.fail_after(PATIENCE_SECONDS):
        while not all(f"{name}__search" in desk.registry.tools for name in servers):
            await changed.wait()
            changed = anyio.Event()


async def search(desk: Desk, caller: Caller = ANONYMOUS, **arguments: Any) -> Answer:
    return await desk.call("search_documentation", {"query": QUERY, "max_results": 20, **arguments}, caller=caller)


def metadata(answer: Answer) -> list[dict[str, Any]]:
    return [item["_meta"]["metadata"] for item in answer.result["content"] if "_meta" in item]


def of(answer: Answer, server: str) -> list[dict[str, Any]]:
    return [entry for entry in metadata(answer) if entry.get("server") == server]


async def test_all_sources_are_in_one_answer_each_hit_with_where_it_is_from(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, beta = sources
    beta.says({"title": "B", "url": "https://beta.example/b", "text": "Beta.", "version": "9"})
    async with open_with_servers({"alpha": alpha.settings(version="3.2"), "beta": beta.settings()}) as desk:
        answer = await search(desk)
    (hit,) = of(answer, "alpha")
    assert (hit["source"], hit["title"], hit["version"]) == ("https://alpha.example/keys", "Keys in alpha", "3.2")
    assert datetime.fromisoformat(hit["fetched_at"]).tzinfo is not None
    assert [hit["version"] for hit in of(answer, "beta")] == ["9"]
    assert any("server" not in entry for entry in metadata(answer)), "our own documentation is in it too"
    assert "3 of 3 sources answered" in answer.text
    assert answer.result["_meta"]["sources"] == {"answered": ["alpha", "beta"], "missing": {}, "stale": []}
    assert alpha.requests == [{"query": QUERY}]


async def test_a_source_that_is_too_slow_or_fails_is_told_and_costs_nothing_else(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, beta = sources
    alpha.says(delay=60)
    beta.does(result={"isError": True, "content": [{"type": "text", "text": "quota is used up"}]})
    async with open_with_servers({"alpha": alpha.settings(timeout_seconds=0.3), "beta": beta.settings()}) as desk:
        answer = await search(desk)
    assert "1 of 3 sources answered" in answer.text
    assert "quota is used up" in answer.text
    assert "did not answer within 0.3 s" in answer.result["_meta"]["sources"]["missing"]["alpha"]
    assert metadata(answer), "what we have ourselves is found"


async def test_what_a_source_said_stands_in_for_it_when_it_fails(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, _ = sources
    async with open_with_servers({"alpha": alpha.settings()}, cache__ttl__search=0.05) as desk:
        (first,) = of(await search(desk), "alpha")
        alpha.does(error={"code": -32000, "message": "out of order"}, exit=True)
        answers: list[Answer] = []

        async def is_stale() -> bool:
            answers.append(await search(desk))
            return bool(answers[-1].result["_meta"]["sources"]["stale"])

        await eventually(is_stale)
    answer = answers[-1]
    assert of(answer, "alpha") == [first], "as old as it says"
    assert answer.result["_meta"]["sources"]["stale"] == ["alpha"]
    assert "from an earlier answer: alpha" in answer.text


async def test_an_answer_with_a_source_missing_is_not_kept(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, _ = sources
    alpha.does(error={"code": -32000, "message": "not now"})
    async with open_with_servers({"alpha": alpha.settings()}) as desk:
        assert not of(await search(desk), "alpha")
        alpha.says({"title": "Back", "text": "Here again."})
        assert of(await search(desk), "alpha")
        before = len(alpha.requests)
        assert of(await search(desk), "alpha")
        assert len(alpha.requests) == before, "and one that is whole is"


async def test_one_page_is_there_once_whoever_found_it(open_with_servers: Open, sources: tuple[Source, Source]) -> None:
    alpha, beta = sources
    alpha.says(
        {"url": "https://docs.example/keys#a", "text": "One."}, {"url": "https://docs.example/keys", "text": "Two."}
    )
    beta.says({"url": "http://DOCS.example/keys/", "text": "Three."}, {"text": "one.", "url": "https://else.example"})
    async with open_with_servers({"alpha": alpha.settings(), "beta": beta.settings()}) as desk:
        answer = await search(desk)
    texts = [item["text"] for item in answer.result["content"] if item["_meta"]["metadata"].get("server")]
    assert len(texts) == 2
    assert "One." in texts[0] + texts[1]
    assert "Two." in texts[0] + texts[1], "a source's own two passages of a page are two"


async def test_one_source_can_be_asked_alone_and_a_set_of_our_own_asks_none(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, beta = sources
    async with open_with_servers({"alpha": alpha.settings(), "beta": beta.settings()}) as desk:
        alone = await search(desk, doc_type="beta")
        assert [entry.get("server") for entry in metadata(alone)] == ["beta"]
        assert "1 of 1 sources answered" in alone.text
        ours = await search(desk, doc_type="refdesk")
        assert not any("server" in entry for entry in metadata(ours))
        assert not alpha.requests
        with pytest.raises(InvalidArguments, match=r"all, refdesk, alpha, beta"):
            await search(desk, doc_type="gamma")


async def test_a_source_that_is_not_for_somebody_is_not_there_for_them(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, beta = sources
    servers = {"alpha": {**alpha.settings(), "tenants": ["acme"]}, "beta": beta.settings()}
    async with open_with_servers(servers) as desk:
        limited = replace(ANONYMOUS, servers=frozenset({"alpha"}))
        assert desk.registry.tools
        answer = await search(desk, limited)
        assert "sources" not in answer.result.get("_meta", {})
        assert not alpha.requests
        assert not beta.requests


async def test_answers_with_sources_stay_within_their_budget(
    open_with_servers: Open, sources: tuple[Source, Source]
) -> None:
    alpha, beta = sources
    for source, word in zip(sources, ("word ", "term "), strict=True):
        source.says(*({"text": f"Passage {number}. " + word * 1500} for number in range(10)))
    async with open_with_servers({"alpha": alpha.settings(), "beta": beta.settings()}) as desk:
        answer = await search(desk, max_tokens=1000)
    assert sum(len(item["text"]) for item in answer.result["content"]) < 1000 * 4 * 1.3
    assert "left out" in answer.text or len(answer.result["content"]) == 20
