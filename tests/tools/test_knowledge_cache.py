"""The tools and the cache, on an engine whose calls are counted and which is out of reach at times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import orjson
import pytest

from refdesk.answers import Answers, Question, WrittenAnswer
from refdesk.app import Desk
from refdesk.cache.cache import Cache
from refdesk.cache.redis import sign
from refdesk.calls import SILENT, Call, Caller, Client, TenantId
from refdesk.config.models import CacheConfig, CacheTtlConfig, ProjectsConfig
from refdesk.engines.base import Engine, Hit
from refdesk.engines.storage.search_history import SearchHistory
from refdesk.errors import EngineError
from refdesk.resilience.redis_connection import open_redis
from refdesk.tools.budget import Blocklist
from refdesk.tools.collection_scope import Projects, ScopeResolver
from refdesk.tools.documentation import Documentation
from refdesk.tools.r2r import KnowledgeTools
from refdesk.tools.registry import Registry
from tests.cache.helpers import Clock
from tests.redis_server import needs_redis, redis_server
from tests.tools.knowing import open_indexed_desk, somebody
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

CALLS = {
    "r2r_search": {"query": "cache", "collection_id": "all"},
    "r2r_rag_query": {"question": "What is the cache?", "collection_id": "all"},
    "r2r_list_documents": {"collection_id": "refdesk"},
    "r2r_list_collections": {},
    "search_documentation": {"query": "cache"},
}
LISTS = ["r2r_list_documents", "r2r_list_collections"]
SECONDS = CacheTtlConfig(search=300, rag=120, list=60)


class Distant:
    """An engine that counts what it is asked, does not know of changes, and may be out of reach."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.traits = engine.traits
        self.asked: Counter[str] = Counter()
        self.state = "always the same"
        self.is_down = False
        self.was_asked = anyio.Event()
        self.may_answer = anyio.Event()
        self.may_answer.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def revision(self, tenant: TenantId, collections: Collection[str] = ()) -> Hashable:
        return self.state

    async def search(self, *given: Any) -> Any:
        return await self._count_and_run("search", self._engine.search, given)

    async def documents(self, *given: Any) -> Any:
        return await self._count_and_run("documents", self._engine.documents, given)

    async def collections(self, *given: Any) -> Any:
        return await self._count_and_run("collections", self._engine.collections, given)

    async def _count_and_run(self, what: str, work: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        self.asked[what] += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.is_down:
            raise EngineError("out of reach")
        return await work(*given)


class Scribe(Answers):
    """Writes the same answer to everything, unless the client has a model of its own."""

    def __init__(self) -> None:
        super().__init__(None, True, None)

    async def write(self, question: Question, hits: Sequence[Hit], client: Client) -> WrittenAnswer:
        model = client.name if isinstance(client, Sampling) else "scribe"
        return WrittenAnswer(text="It keeps answers.", cited=(), model=model, found=True)


class Sampling(Client):
    """A client with a model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def can(self, method: str) -> bool:
        return method == "sampling/createMessage"


class Tools:
    """The tools on an engine, with a cache of their own."""

    def __init__(self, engine: Distant, cache: Cache, folder: Path, *, is_remote: bool) -> None:
        self._registry = Registry()
        self.caller = somebody("ann")
        engine.traits = replace(engine.traits, has_certain_revision=not is_remote)
        asked = cast(Engine, engine)
        scopes = ScopeResolver(asked, Projects(asked, ProjectsConfig(), folder, None))
        history = SearchHistory(folder)
        KnowledgeTools(asked, history, scopes, Scribe(), cache, SECONDS, Blocklist((), "refuse")).register(
            self._registry
        )
        Documentation(asked, cache, SECONDS.search).register(self._registry)

    async def ask(
        self, tool: str, caller: Caller | None = None, client: Client = SILENT, **more: Any
    ) -> dict[str, Any]:
        call = Call("tools/call", {"name": tool}, caller or self.caller, client)
        return await self._registry.tools[tool].__call__({**CALLS[tool], **more}, call)


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_indexed_desk(tmp_path_factory.mktemp("data")) as desk:
        yield desk


@pytest.fixture
def engine(desk: Desk) -> Distant:
    return Distant(desk.engine)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache:
    return Cache(CacheConfig(), now=clock)


@pytest.fixture
def tools(engine: Distant, cache: Cache, tmp_path: Path) -> Tools:
    return Tools(engine, cache, tmp_path, is_remote=True)


@pytest.mark.parametrize("tool", CALLS)
async def test_what_a_distant_engine_answered_is_kept_for_its_time(
    tools: Tools, engine: Distant, clock: Clock, tool: str
) -> None:
    first = await tools.ask(tool)
    clock.now += 59
    again = await tools.ask(tool)
    assert again["content"] == first["content"]
    assert engine.asked.total() == 1
    clock.now += 300
    await tools.ask(tool)
    assert engine.asked.total() == 2


@pytest.mark.parametrize("tool", LISTS)
async def test_what_is_at_hand_is_listed_anew_each_time(
    engine: Distant, cache: Cache, tmp_path: Path, tool: str
) -> None:
    tools = Tools(engine, cache, tmp_path, is_remote=False)
    for _ in range(3):
        await tools.ask(tool)
    assert engine.asked.total() == 3


@pytest.mark.parametrize("tool", CALLS)
async def test_when_the_engine_is_out_of_reach_the_old_answer_is_given_and_says_so(
    tools: Tools, engine: Distant, clock: Clock, tool: str
) -> None:
    first = await tools.ask(tool)
    clock.now += 301
    engine.is_down = True
    old = await tools.ask(tool)
    assert old["content"][:-1] == first["content"]
    assert "cannot answer at the moment" in old["content"][-1]["text"]
    if "structuredContent" in first:
        assert old["structuredContent"]["stale"] is True
    with pytest.raises(EngineError):
        await tools.ask(tool, somebody("eve", tools.caller.tenant))
    engine.is_down = False
    assert len((await tools.ask(tool))["content"]) == len(first["content"])


@pytest.mark.parametrize("tool", CALLS)
async def test_after_a_change_nothing_old_is_given_whatever_happens(
    tools: Tools, engine: Distant, cache: Cache, tool: str
) -> None:
    await tools.ask(tool)
    cache.changed(tools.caller.tenant)
    engine.is_down = True
    with pytest.raises(EngineError):
        await tools.ask(tool)


async def check_thousand_callers(tools: Tools, engine: Distant) -> None:
    engine.may_answer = anyio.Event()
    tasks = [asyncio.create_task(tools.ask("r2r_search")) for _ in range(1000)]
    with anyio.fail_after(PATIENCE_SECONDS):
        await engine.was_asked.wait()
        engine.may_answer.set()
        answers = await asyncio.gather(*tasks)
    assert engine.asked == {"search": 1}
    assert sum(not answer["structuredContent"]["cached"] for answer in answers) == 1


async def test_an_answer_that_takes_nobodys_client_is_not_begun_anew_when_its_first_caller_leaves(
    tools: Tools, engine: Distant
) -> None:
    engine.may_answer = anyio.Event()
    first, *others = [asyncio.ensure_future(tools.ask("r2r_rag_query")) for _ in range(3)]
    with anyio.fail_after(PATIENCE_SECONDS):
        await engine.was_asked.wait()
    first.cancel()
    await asyncio.wait([first])
    engine.may_answer.set()
    for answer in await asyncio.gather(*others):
        assert answer["structuredContent"]["answer"] == "It keeps answers."
    assert engine.asked["search"] == 1


async def test_an_answer_by_a_clients_model_is_given_to_that_client_alone(tools: Tools) -> None:
    clients = [Sampling("eve"), SILENT, Sampling("ann"), Sampling("bob"), SILENT]
    answers = await asyncio.gather(*(tools.ask("r2r_rag_query", client=client) for client in clients))
    answers += [await tools.ask("r2r_rag_query", client=client) for client in clients]
    models = [answer["structuredContent"]["model_used"] for answer in answers]
    assert models == ["eve", "scribe", "ann", "bob", "scribe"] * 2


async def test_a_thousand_searches_at_once_are_one_for_the_engine(tools: Tools, engine: Distant) -> None:
    await check_thousand_callers(tools, engine)


@needs_redis
async def test_a_thousand_searches_at_once_are_one_for_the_engine_with_redis(engine: Distant, tmp_path: Path) -> None:
    with redis_server() as server:
        async with open_redis(server.settings()) as link:
            await check_thousand_callers(Tools(engine, Cache(CacheConfig(), link), tmp_path, is_remote=True), engine)


@needs_redis
@pytest.mark.parametrize("tool", ["r2r_search", "r2r_rag_query", *LISTS])
async def test_an_answer_in_redis_that_is_not_what_the_tool_gives_is_made_anew(
    engine: Distant, tmp_path: Path, tool: str
) -> None:
    with redis_server() as server:
        async with open_redis(server.settings()) as link:
            cache = Cache(CacheConfig(), link)
            tools = Tools(engine, cache, tmp_path, is_remote=True)
            first = await tools.ask(tool)
            (key,) = await link.run(lambda redis: redis.keys("refdesk:1:answer:*"))
            (generation_key,) = await link.run(lambda redis: redis.keys("refdesk:1:generation:*"))
            generation = cast(bytes, await link.run(lambda redis: redis.get(generation_key)))
            name = cast(bytes, key).decode().removeprefix("refdesk:1:answer:")
            other = {**first, "structuredContent": {"results": "of another version"}}
            value = sign(name, generation, orjson.loads(orjson.dumps(other)), cache._secret)
            await link.run(lambda redis: redis.set(key, value, px=620_000))
            assert await tools.ask(tool) == first
            assert engine.asked.total() == 2


@needs_redis
@pytest.mark.parametrize("tool", ["r2r_search", "r2r_rag_query", "search_documentation"])
async def test_a_change_of_what_is_at_hand_is_seen_through_redis_as_well(
    engine: Distant, tmp_path: Path, tool: str
) -> None:
    with redis_server() as server:
        async with open_redis(server.settings()) as link:
            tools = Tools(engine, Cache(CacheConfig(), link), tmp_path, is_remote=False)
            for state, times in (("before", 1), ("before", 1), ("after", 2)):
                engine.state = state
                await tools.ask(tool)
                assert engine.asked["search"] == times
