"""The composition root: what a desk is made of, in the order in which it is opened.

Only this module sees the whole configuration and every part.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from refdesk.answers import open_answers
from refdesk.cache import Cache, open_cache, shared_secret
from refdesk.calls import LOCAL, Answer, Call, Caller, Handler, Policy
from refdesk.config import Config, load, require_support
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.embedded.embedding import embed_at_once, open_embedder
from refdesk.engines.embedded.embedding.port import Embedder
from refdesk.engines.embedded.engine import open_embedded
from refdesk.engines.port import LACKS_SHARED, Engine
from refdesk.errors import DependencyError
from refdesk.manual import bring_in_manual, manual_index_folder
from refdesk.policy.authenticate import Authenticate, open_authentication
from refdesk.policy.chain import chain
from refdesk.policy.deadline import Deadline
from refdesk.policy.observe import Observe, Record
from refdesk.policy.permissions import Permissions
from refdesk.policy.rate_limit import RateLimit, is_limited
from refdesk.resilience.dependency import Dependency
from refdesk.resilience.limits import MAX_BUCKETS, MAX_BUCKETS_OF_ONE, Limits, MemoryLimits
from refdesk.resilience.redis import RedisLink, open_redis
from refdesk.resilience.redis_limits import RedisLimits
from refdesk.resilience.told import BreakerLog, tell_of_redis
from refdesk.telemetry import Log, Metrics, Spans, open_reports, open_spans, secrets_of
from refdesk.tools.announcements import Announcements
from refdesk.tools.budget import Blocklist
from refdesk.tools.catalogue import Catalogue
from refdesk.tools.conversion import Conversion
from refdesk.tools.documentation import Documentation
from refdesk.tools.ingestion import Ingesting
from refdesk.tools.knowledge import Knowledge
from refdesk.tools.knowledge_resources import KnowledgeResources
from refdesk.tools.projects import Projects
from refdesk.tools.prompts import KnowledgePrompts
from refdesk.tools.reader import Reader
from refdesk.tools.registry import Registry
from refdesk.tools.scopes import Scopes
from refdesk.tools.shelves import Shelves
from refdesk.tools.sources import OpenFolders, Sources, default_roots
from refdesk.tools.windows import LocalWindows, open_windows

RESOURCE_TOOLSETS = {"techdoc": "docs", "r2r": "r2r", "document": "convert"}
"""Whose resources are under which URI scheme."""


@asynccontextmanager
async def open_desk(
    config: Config | str | os.PathLike[str] | None = None, *, log: Log | None = None
) -> AsyncIterator[Desk]:
    """A desk that answers calls; `config` is a configuration, the path of one, or None for the defaults."""
    if not isinstance(config, Config):
        config = load(Path(config) if config is not None else None, os.environ)
    require_support(config)
    async with AsyncExitStack() as stack:
        # A program that uses the library is not to find a log line a call on its terminal.
        log = log or stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        log.keep_secret(secrets_of(config))
        log.report_to(await stack.enter_async_context(open_reports(config.monitoring.sentry)))
        spans = await stack.enter_async_context(open_spans(config.monitoring.opentelemetry))
        audience = config.token_audience
        authenticate = await stack.enter_async_context(open_authentication(config.auth, config.data_path, audience))
        parts = await _open_parts(config, log, stack)
        await _offer_tools(parts, stack)
        yield Desk(parts, chain(_policies(parts, authenticate, spans), parts.catalogue), authenticate)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the tools, and the policies around them, are made with."""

    config: Config
    log: Log
    metrics: Metrics
    registry: Registry
    catalogue: Catalogue
    permissions: Permissions
    conversions: Conversions
    embedder: Embedder | None
    engine: Engine
    redis: RedisLink | None
    cache: Cache
    dependencies: list[Dependency]
    """What is behind this server, to be watched and told of."""

    def limits(self, max_of_one: int = MAX_BUCKETS_OF_ONE) -> Limits:
        """Where calls are counted."""
        local = MemoryLimits(max_of_one=max_of_one)
        is_shared = self.config.rate_limits.type == "redis"
        return RedisLimits(self.redis, local) if is_shared and self.redis else local

    def depend_on(self, *others: object) -> None:
        """Watch the dependencies that other parts have, if they have any."""
        for other in others:
            single = getattr(other, "dependency", None)
            for dependency in getattr(other, "dependencies", (single,) if single else ()):
                dependency.watch(self.metrics)
                dependency.watch(BreakerLog(self.log))
                self.dependencies.append(dependency)


async def _open_parts(config: Config, log: Log, stack: AsyncExitStack) -> Parts:
    opened = stack.enter_async_context
    metrics, registry = Metrics(), Registry()
    catalogue = Catalogue(registry, config.toolsets, config.server.page_size)
    permissions = Permissions(config.toolsets, registry.tools, RESOURCE_TOOLSETS, config.auth.oauth.scope_roles)
    conversions = await opened(open_conversions(config.convert, config.data_path, metrics))
    embedder = await opened(open_embedder(config.embedding))
    engine = await opened(_open_engine(config, embedder, conversions, log, metrics))
    if LACKS_SHARED not in engine.lacks:
        await bring_in_manual(engine)
    needs_redis = "redis" in (config.cache.type, config.rate_limits.type)
    redis = await opened(open_redis(config.cache.redis, changed=partial(tell_of_redis, log))) if needs_redis else None
    cache = await opened(_open_cache(config, redis, metrics))
    if config.r2r.api_url is not None:
        # What is in this machine has a revision that says as much, to every process.
        engine.listen(cache.changed)
    parts = Parts(
        config, log, metrics, registry, catalogue, permissions, conversions, embedder, engine, redis, cache, []
    )
    parts.depend_on(engine, embedder)
    return parts


def _open_engine(
    config: Config, embedder: Embedder | None, conversions: Conversions, log: Log, metrics: Metrics
) -> AbstractAsyncContextManager[Engine]:
    readers, closed = config.convert.workers, _own_files(config)
    if config.r2r.api_url is not None:
        # Slow to import, and most desks have no R2R.
        from refdesk.engines.r2r.engine import open_r2r

        folder = config.data_path / "r2r"
        return open_r2r(
            config.r2r, config.circuit_breaker, folder, conversions,
            log=log, metrics=metrics, readers=readers, closed=closed,
        )  # fmt: skip
    tenants, shared = config.data_path / "tenants", manual_index_folder(config.data_path)
    return open_embedded(
        tenants, shared, embedder, conversions, log=log, metrics=metrics, readers=readers, closed=closed
    )


def _open_cache(config: Config, redis: RedisLink | None, metrics: Metrics) -> AbstractAsyncContextManager[Cache]:
    """The cache; processes that answer from the same documents share it, if it is one that can be shared."""
    opened = partial(open_cache, config.cache, counted=metrics.cache_counted, holds=metrics.cache_holds)
    if redis is None or config.cache.type != "redis":
        return opened()
    made_from = config.r2r.api_url or config.data_path, config.embedding, config.answers
    namespace = repr([str(part) for part in made_from])
    secret = shared_secret(config.r2r, config.data_path)
    return opened(redis, namespace=namespace, secret=secret)


async def _offer_tools(parts: Parts, stack: AsyncExitStack) -> None:
    config, engine, registry, conversions = parts.config, parts.engine, parts.registry, parts.conversions
    shelves = Shelves(conversions, engine)
    local = LocalWindows(shelves, engine)
    windows = await stack.enter_async_context(open_windows(config.reader, local))
    embed = partial(embed_at_once, parts.embedder) if parts.embedder else None
    answers = await stack.enter_async_context(open_answers(config.answers, embed))
    parts.depend_on(windows, answers)
    ttl, is_remote = config.cache.ttl, config.r2r.api_url is not None
    Documentation(engine, parts.cache, ttl.search, is_remote=is_remote).register(registry)
    blocklist = Blocklist(config.reader.blocklist_keywords, config.reader.blocklist_action)
    tools, refused = parts.permissions.narrowed(parts.catalogue.tools), parts.metrics.rate_limited
    Reader(shelves, windows, local, config.reader, blocklist, tools, parts.limits(), refused).register(registry)
    sources = Sources(conversions, config.convert, _open_folders(config))
    Conversion(conversions, sources, blocklist).register(registry)
    projects = Projects(engine, config.projects, config.data_path, config.project)
    scopes = Scopes(engine, projects)
    Knowledge(engine, scopes, answers, parts.cache, ttl, is_remote=is_remote).register(registry)
    Ingesting(engine, scopes, sources, conversions).register(registry)
    KnowledgePrompts(engine, scopes).register(registry)
    registry.add_resources(KnowledgeResources(engine, projects))
    engine.listen(Announcements(engine, registry).changed)


def _policies(parts: Parts, authenticate: Authenticate, spans: Spans | None) -> Sequence[Policy]:
    """What stands around every call, the outermost first."""
    config = parts.config
    # All users may be of one tenant, so that one tenant may have all of the table.
    limited = is_limited(config.rate_limits)
    limits = partial(RateLimit, config.rate_limits, refused=parts.metrics.rate_limited)
    return [
        *([Record(spans)] if spans else []),
        Observe(parts.log, parts.metrics, parts.registry.tools),
        *([authenticate] if config.auth.required else []),
        parts.permissions,
        *([limits(parts.limits(MAX_BUCKETS))] if limited else []),
        Deadline(config.server.request_timeout_seconds, parts.catalogue.seconds),
    ]


def _open_folders(config: Config) -> OpenFolders:
    """The folders whose files tools may name, less what is this desk's own."""
    return OpenFolders(default_roots(config.convert, Path.cwd(), Path.home()), _own_files(config))


def _own_files(config: Config) -> list[Path]:
    return [path for path in (config.data_path, config.config_file, config.logging.file) if path]


class Desk:
    """An open desk: what the ways in, the command line and programs call."""

    def __init__(self, parts: Parts, handle: Handler, authenticate: Authenticate) -> None:
        self.registry = parts.registry
        self.handle = handle
        self.identify = authenticate.identify
        self.scopes_for = parts.permissions.scopes_for
        self.listen = parts.registry.listen
        self.is_plain = parts.catalogue.is_plain
        self.input_schema = parts.catalogue.input_schema
        self.engine = parts.engine
        self.conversions = parts.conversions
        self.metrics = parts.metrics
        self._authenticate = authenticate
        self._parts = parts

    @property
    def has_keys(self) -> bool:
        """Whether callers are told apart here; a key may be made while the desk is open."""
        return self._authenticate.has_keys

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, caller: Caller = LOCAL) -> Answer:
        """Call a tool by its name, as the owner of this process unless a caller is given."""
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        params = {"name": tool, "arguments": given}
        return await self.handle(Call(method="tools/call", params=params, caller=caller))

    async def measure(self) -> None:
        """Set what is measured only when somebody looks."""
        with suppress(DependencyError):  # which readiness tells; the last numbers stand
            for status, documents in (await self.engine.waiting()).items():
                self.metrics.queue_length(status, documents)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the desk can do its work, and how each part of it is."""
        parts: dict[str, Any] = {dependency.name: dependency.describe() for dependency in self._parts.dependencies}
        parts |= {"convert": self.conversions.check(), "cache": self._cache_state(), **self._authenticate.describe()}
        try:
            engine = {"state": "ok", "detail": await self.engine.check()}
        except DependencyError as error:
            return False, {"engine": {"state": "down", "detail": error.detail}, **parts}
        return True, {"engine": engine, **parts}

    def _cache_state(self) -> dict[str, Any]:
        """Without Redis, which is away, the desk is slower and does all it should."""
        cache, redis = self._parts.cache, self._parts.redis
        where = {} if redis is None else {"redis": redis.describe()}
        return {"state": "ok", "entries": len(cache), "bytes": cache.bytes, **where}
