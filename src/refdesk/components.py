"""Builds the application's components and registers the tools, in the order of their dependencies.

Only this module and `app` see the whole configuration and every component.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from refdesk.answers import open_answers
from refdesk.cache import Cache, open_cache, shared_secret
from refdesk.calls import CONSOLE, Caller
from refdesk.config import Config
from refdesk.config.servers import McpServerConfig
from refdesk.console.activity import Activity
from refdesk.console.administration import Administration
from refdesk.console.console import Console
from refdesk.console.documents import Holdings
from refdesk.console.feed import Feed
from refdesk.console.servers import Servers
from refdesk.documents.conversions import MAX_FILE_BYTES, Conversions, open_conversions
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.server_log import ServerLog
from refdesk.downstream.files.servers_file import combined, watched_files
from refdesk.downstream.files.switching import OwnServers
from refdesk.downstream.files.watching import FollowedServers
from refdesk.downstream.fleet.fleet import Fleet, open_fleet
from refdesk.engines.background import in_background
from refdesk.engines.base import LACKS_SHARED, Engine
from refdesk.engines.embedded.embedding import embed_at_once, open_embedder
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.engine import open_embedded
from refdesk.manual import bring_in_manual, manual_index_folder
from refdesk.policy.authenticate import Authenticate
from refdesk.policy.chain import chain
from refdesk.policy.key_admin import KeyRing
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.policy.permissions import Permissions, may_reach, may_reach_some
from refdesk.resilience.breaker_log import BreakerLog, tell_of_redis
from refdesk.resilience.dependency import Dependency
from refdesk.resilience.limits import MAX_BUCKETS_OF_ONE, Limits, MemoryLimits
from refdesk.resilience.redis import RedisLink, open_redis
from refdesk.resilience.redis_limits import RedisLimits
from refdesk.telemetry import Log, Metrics, secrets_of
from refdesk.telemetry.history import History
from refdesk.tools.announcements import Announcements
from refdesk.tools.budget import Blocklist
from refdesk.tools.collection_scope import Scopes
from refdesk.tools.conversion import Conversion
from refdesk.tools.dispatcher import Catalogue
from refdesk.tools.document_lookup import Shelves
from refdesk.tools.documentation import Documentation
from refdesk.tools.federation import Federation
from refdesk.tools.gateway import Gateway, open_gateway
from refdesk.tools.ingestion import Ingesting
from refdesk.tools.projects import Projects
from refdesk.tools.prompts import KnowledgePrompts
from refdesk.tools.r2r import Knowledge
from refdesk.tools.r2r_resources import KnowledgeResources
from refdesk.tools.reader import Reader
from refdesk.tools.registry import Registry
from refdesk.tools.sources import OpenFolders, Sources, default_roots
from refdesk.tools.tool_search import ToolSearch, open_tool_search
from refdesk.tools.windows import LocalWindows, open_windows
from refdesk.version import __version__

RESOURCE_TOOLSETS = {"techdoc": "docs", "r2r": "r2r", "document": "convert", "refdesk": "downstream"}
"""Toolset of each resource URI scheme."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Components that tools and policies are built from."""

    config: Config
    log: Log
    metrics: Metrics
    registry: Registry
    catalogue: Catalogue
    permissions: Permissions
    conversions: Conversions
    embedder: Embedder | None
    engine: Engine
    fleet: Fleet
    own_servers: OwnServers
    redis: RedisLink | None
    cache: Cache
    dependencies: list[Dependency]
    """External dependencies that are monitored."""

    def limits(self, max_of_one: int = MAX_BUCKETS_OF_ONE) -> Limits:
        """Create a rate limiter, shared through Redis if configured."""
        local = MemoryLimits(max_of_one=max_of_one)
        is_shared = self.config.rate_limits.type == "redis"
        return RedisLimits(self.redis, local) if is_shared and self.redis else local

    def depend_on(self, *others: object) -> None:
        """Monitor the dependencies of other components, if they have any."""
        for other in others:
            single = getattr(other, "dependency", None)
            for dependency in getattr(other, "dependencies", (single,) if single else ()):
                dependency.watch(self.metrics)
                dependency.watch(BreakerLog(self.log))
                self.dependencies.append(dependency)


async def open_parts(
    config: Config, log: Log, stack: AsyncExitStack, *, servers: bool, trusts_everybody: Callable[[], bool]
) -> Parts:
    """Open the components. `servers` is whether to start downstream servers."""
    opened = stack.enter_async_context
    metrics, registry = Metrics(), Registry()
    # First, because servers start in the background.
    fleet = await opened(_open_fleet(config, registry, metrics, log))
    own_servers = await opened(_following_the_files(config, fleet, log, servers=servers))
    catalogue = Catalogue(registry, config.toolsets, config.server.page_size)
    scope_roles = config.auth.oauth.scope_roles
    permissions = Permissions(config.toolsets, registry.tools, RESOURCE_TOOLSETS, scope_roles, trusts_everybody)
    conversions = await opened(open_conversions(config.convert, config.data_path, metrics))
    embedder = await opened(open_embedder(config.embedding))
    engine = await opened(_open_engine(config, embedder, conversions, log, metrics))
    if LACKS_SHARED not in engine.lacks:
        await bring_in_manual(engine)
    needs_redis = "redis" in (config.cache.type, config.rate_limits.type)
    redis = await opened(open_redis(config.cache.redis, changed=partial(tell_of_redis, log))) if needs_redis else None
    cache = await opened(_open_cache(config, redis, metrics))
    if config.r2r.api_url is not None:
        # The embedded engine has a revision that every process sees.
        engine.listen(cache.changed)
    parts = Parts(
        config, log, metrics, registry, catalogue, permissions, conversions, embedder, engine, fleet, own_servers,
        redis, cache, [],
    )  # fmt: skip
    parts.depend_on(engine, embedder)
    return parts


def _open_fleet(config: Config, registry: Registry, metrics: Metrics, log: Log) -> AbstractAsyncContextManager[Fleet]:
    """Open the fleet, without any servers yet."""
    folder = config.data_path / "downstream"
    written_down = BreakerLog(log)

    def connect(name: str, settings: McpServerConfig, **more: Any) -> Connection:
        return Connection(name, settings, heard_stderr=ServerLog(folder, name, secrets_of(settings)), **more)

    def started(connection: Connection) -> None:
        connection.dependency.watch(metrics)
        connection.dependency.watch(written_down)

    return open_fleet(
        config.downstream, folder, reserved=registry.is_own, counts=metrics, started=started, connect=connect
    )


def _open_engine(
    config: Config, embedder: Embedder | None, conversions: Conversions, log: Log, metrics: Metrics
) -> AbstractAsyncContextManager[Engine]:
    readers, closed = config.convert.workers, _own_files(config)
    if config.r2r.api_url is not None:
        # Slow to import, and most installations have no R2R.
        from refdesk.engines.r2r.engine import open_r2r

        folder = config.data_path / "r2r"
        return open_r2r(
            config.r2r, config.circuit_breaker, folder, conversions,
            log=log, metrics=metrics, readers=readers, closed=closed,
        )  # fmt: skip
    tenants, shared = config.data_path / "tenants", manual_index_folder(config.data_path, config.embedding)
    return open_embedded(
        tenants, shared, embedder, conversions, log=log, metrics=metrics, readers=readers, closed=closed
    )


def _open_cache(config: Config, redis: RedisLink | None, metrics: Metrics) -> AbstractAsyncContextManager[Cache]:
    """Open the cache. If it's in Redis, processes with the same documents share it."""
    opened = partial(open_cache, config.cache, counted=metrics.cache_counted, holds=metrics.cache_holds)
    if redis is None or config.cache.type != "redis":
        return opened()
    made_from = config.r2r.api_url or config.data_path, config.embedding, config.answers
    namespace = repr([str(part) for part in made_from])
    secret = shared_secret(config.r2r, config.data_path)
    return opened(redis, namespace=namespace, secret=secret)


async def offer_tools(parts: Parts, stack: AsyncExitStack) -> None:
    config, engine, registry, conversions = parts.config, parts.engine, parts.registry, parts.conversions
    shelves = Shelves(conversions, engine)
    local = LocalWindows(shelves, engine)
    windows = await stack.enter_async_context(open_windows(config.reader, local))
    embed = partial(embed_at_once, parts.embedder) if parts.embedder else None
    answers = await stack.enter_async_context(open_answers(config.answers, embed))
    parts.depend_on(windows, answers)
    ttl, is_remote = config.cache.ttl, config.r2r.api_url is not None
    federation = Federation(parts.fleet, parts.cache, ttl.search, may_reach)
    Documentation(engine, parts.cache, ttl.search, is_remote=is_remote, federation=federation).register(registry)
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


async def offer_servers(parts: Parts, stack: AsyncExitStack) -> Gateway:
    """Register the tools of downstream servers. Our own tools come first and keep their names."""
    settings, opened = parts.config.downstream, stack.enter_async_context
    parts.fleet.names_taken()
    search = await opened(_open_search(parts)) if settings.tool_search else None
    schemes = RESOURCE_TOOLSETS
    return await opened(
        open_gateway(parts.fleet, parts.registry, settings, reach=may_reach, own_schemes=schemes, search=search)
    )


async def offer_console(parts: Parts, authenticate: Authenticate, stack: AsyncExitStack) -> Console:
    """Register the web console, and start sampling for its charts."""
    config, engine, rights = parts.config, parts.engine, parts.permissions
    keys = KeyRing(KeyFile(config.data_path / FILE_NAME), config.auth.keys, authenticate.keys.look_again)
    about = partial(_about, parts, authenticate)
    history = History(parts.metrics, leave_out=CONSOLE)
    servers = Servers(parts.fleet, parts.own_servers, rights, may_reach, may_reach_some, history)
    activity = Activity(history, engine, servers, partial(_is_shown, parts))
    feed = Feed(engine, servers, activity, rights)
    console = Console(about, rights, Holdings(engine), servers, Administration(keys, engine), activity, feed)
    console.register(parts.registry.add_method)
    await stack.enter_async_context(in_background(activity.run()))
    return console


def _about(parts: Parts, authenticate: Authenticate) -> dict[str, Any]:
    """Return what the console shows about the server to authenticated callers."""
    config, is_remote = parts.config, parts.config.r2r.api_url is not None
    writer = config.answers.model if config.answers.api_url is not None else "r2r" if is_remote else None
    return {
        "auth_required": config.auth.required,
        "has_keys": authenticate.has_keys,
        "version": __version__,
        "engine": "r2r" if is_remote else "embedded",
        "embedding": parts.embedder.name if parts.embedder is not None and not is_remote else None,
        "answers": writer,
        "max_upload_bytes": MAX_FILE_BYTES,
        "project": config.project,
    }


def _is_shown(parts: Parts, caller: Caller, name: str) -> bool:
    """Return whether a tool is available to a caller."""
    tool = parts.registry.tools.get(name)
    return tool is not None and tool.toolset in parts.permissions.toolsets(caller) and tool.is_open_to(caller)


@asynccontextmanager
async def _following_the_files(config: Config, fleet: Fleet, log: Log, *, servers: bool) -> AsyncIterator[OwnServers]:
    """Start the configured servers, and apply changes of the files that configure them."""
    if not servers:
        yield OwnServers(config, os.environ, _nothing_to_take_in)
        return
    found = combined(config, os.environ)
    for warning in found.warnings:
        log.events.warning("downstream.settings", detail=warning)

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        secrets = [secret for settings in servers.values() for secret in secrets_of(settings)]
        log.keep_secret([*secrets_of(config), *secrets])
        await fleet.apply(servers)

    await apply(found.servers)
    followed = FollowedServers(
        watched_files(config), lambda: combined(config, os.environ).servers, apply, known=found.servers
    )
    following = asyncio.create_task(followed.follow())
    try:
        yield OwnServers(config, os.environ, followed.take_in)
    finally:
        following.cancel()
        await asyncio.wait([following])


async def _nothing_to_take_in() -> None:
    """Do nothing: the application was opened without servers."""


def _open_search(parts: Parts) -> AbstractAsyncContextManager[ToolSearch]:
    embed = partial(embed_at_once, parts.embedder) if parts.embedder else None
    tools = parts.permissions.narrowed(parts.catalogue.open_tools)
    return open_tool_search(tools, chain([parts.permissions], parts.catalogue), parts.registry, embed)


def _open_folders(config: Config) -> OpenFolders:
    """Return the folders whose files tools may open, without Refdesk's own files."""
    return OpenFolders(default_roots(config.convert, Path.cwd(), Path.home()), _own_files(config))


def _own_files(config: Config) -> list[Path]:
    return [path for path in (config.data_path, config.servers_path, config.config_file, config.logging.file) if path]
