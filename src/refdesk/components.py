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
from refdesk.cache import Cache, load_cache_secret, open_cache
from refdesk.calls import CONSOLE, Caller, chain
from refdesk.config import Config
from refdesk.config.server_model import McpServerConfig
from refdesk.console.console import Console
from refdesk.console.document_methods import ConsoleDocuments
from refdesk.console.feed import Activity, Feed
from refdesk.console.server_methods import Servers
from refdesk.documents.conversion_limits import MAX_FILE_BYTES
from refdesk.documents.conversions import Conversions
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.server_files_watcher import ServerFilesWatcher
from refdesk.downstream.files.server_log import ServerLog
from refdesk.downstream.files.servers_file import OwnServers, list_server_files, load_servers
from refdesk.downstream.fleet.fleet import Fleet, open_fleet
from refdesk.engines.base import LACKS_SHARED, Engine, EngineTraits
from refdesk.engines.embedded.embedding import Embedder, embed_with_priority
from refdesk.engines.storage.search_history import SearchHistory, open_search_history
from refdesk.ingest.ingest_pipeline import find_engine_folder, list_own_files, open_pipeline
from refdesk.manual import index_manual
from refdesk.policy.authenticate import Authenticate
from refdesk.policy.key_admin import KeyRing
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.policy.permissions import Permissions, can_reach, can_reach_any
from refdesk.policy.policies import ResolveNames
from refdesk.resilience.breaker_log import BreakerLog, log_redis_state
from refdesk.resilience.dependency import Dependency
from refdesk.resilience.limits import MAX_BUCKETS_PER_OWNER, MemoryRateLimiter, RateLimiter
from refdesk.resilience.redis_connection import RedisLink, open_redis
from refdesk.resilience.redis_limits import RedisRateLimiter
from refdesk.support.tasks import in_background
from refdesk.telemetry import Log, Metrics, iter_secrets
from refdesk.telemetry.metric_history import History
from refdesk.tools.budget import Blocklist
from refdesk.tools.collection_scope import Projects, ScopeResolver
from refdesk.tools.conversion import Conversion
from refdesk.tools.dispatcher import Dispatcher
from refdesk.tools.document_lookup import DocumentLookup
from refdesk.tools.documentation import Documentation
from refdesk.tools.federation import Federation
from refdesk.tools.file_sources import OpenFolders, Sources, default_roots
from refdesk.tools.gateway import Gateway, open_gateway
from refdesk.tools.ingestion import IngestionTools
from refdesk.tools.r2r import KnowledgeTools
from refdesk.tools.r2r_resources import ChangePublisher, KnowledgePrompts, KnowledgeResources
from refdesk.tools.reader import Reader
from refdesk.tools.registry import Registry
from refdesk.tools.tool_search import ToolSearch, open_tool_search
from refdesk.tools.windows import open_windows
from refdesk.version import __version__

RESOURCE_TOOLSETS = {"techdoc": "docs", "r2r": "r2r", "document": "convert", "refdesk": "downstream"}
"""Toolset of each resource URI scheme."""


@dataclass(frozen=True, slots=True)
class Components:
    """Components that tools and policies are built from."""

    config: Config
    log: Log
    metrics: Metrics
    registry: Registry
    dispatcher: Dispatcher
    permissions: Permissions
    conversions: Conversions
    embedder: Embedder | None
    engine: Engine
    history: SearchHistory
    fleet: Fleet
    own_servers: OwnServers
    redis: RedisLink | None
    cache: Cache
    dependencies: list[Dependency]
    """External dependencies that are monitored."""

    def limits(self, max_of_one: int = MAX_BUCKETS_PER_OWNER) -> RateLimiter:
        """Create a rate limiter, shared through Redis if configured."""
        local = MemoryRateLimiter(max_of_one=max_of_one)
        is_shared = self.config.rate_limits.type == "redis"
        return RedisRateLimiter(self.redis, local) if is_shared and self.redis else local

    def monitor_dependencies(self, *dependencies: Dependency | None) -> None:
        """Monitor the external dependencies of components. None is the dependency of a component without one."""
        for dependency in filter(None, dependencies):
            dependency.watch(self.metrics)
            dependency.watch(BreakerLog(self.log))
            self.dependencies.append(dependency)


async def open_components(
    config: Config, log: Log, stack: AsyncExitStack, *, servers: bool, trusts_all_callers: Callable[[], bool]
) -> Components:
    """Open the components. `servers` is whether to start downstream servers."""
    enter = stack.enter_async_context
    metrics, registry = Metrics(), Registry()
    # First, because servers start in the background.
    fleet = await enter(_open_fleet(config, registry, metrics, log))
    own_servers = await enter(_watch_server_files(config, fleet, log, servers=servers))
    dispatcher = Dispatcher(registry, config.toolsets, config.server.page_size)
    scope_roles = config.auth.oauth.scope_roles
    permissions = Permissions(config.toolsets, registry.find_tool, RESOURCE_TOOLSETS, scope_roles, trusts_all_callers)
    pipeline = await enter(open_pipeline(config, log, metrics))
    engine, embedder = pipeline.engine, pipeline.embedder
    if LACKS_SHARED not in engine.traits.lacks:
        await index_manual(engine)
    history = await enter(open_search_history(find_engine_folder(config)))
    needs_redis = "redis" in (config.cache.type, config.rate_limits.type)
    redis = await enter(open_redis(config.cache.redis, changed=partial(log_redis_state, log))) if needs_redis else None
    cache = await enter(_open_cache(config, engine.traits, redis, metrics))
    if not engine.traits.has_certain_revision:
        engine.listen(cache.changed)
    components = Components(
        config, log, metrics, registry, dispatcher, permissions, pipeline.conversions, embedder, engine, history,
        fleet, own_servers, redis, cache, [],
    )  # fmt: skip
    components.monitor_dependencies(*engine.dependencies, embedder.dependency if embedder else None)
    return components


def _open_fleet(config: Config, registry: Registry, metrics: Metrics, log: Log) -> AbstractAsyncContextManager[Fleet]:
    """Open the fleet, without any servers yet."""
    folder = config.data_path / "downstream"
    breaker_log = BreakerLog(log)

    def connect(name: str, settings: McpServerConfig, **more: Any) -> Connection:
        return Connection(name, settings, on_stderr_line=ServerLog(folder, name, iter_secrets(settings)), **more)

    def watch_connection(connection: Connection) -> None:
        connection.dependency.watch(metrics)
        connection.dependency.watch(breaker_log)

    return open_fleet(
        config.downstream, folder, reserved=registry.is_own, counts=metrics, started=watch_connection, connect=connect
    )


def _open_cache(
    config: Config, traits: EngineTraits, redis: RedisLink | None, metrics: Metrics
) -> AbstractAsyncContextManager[Cache]:
    """Open the cache. If it's in Redis, processes with the same documents share it."""
    create = partial(open_cache, config.cache, counted=metrics.count_cache_request, holds=metrics.set_cache_size)
    if redis is None or config.cache.type != "redis":
        return create()
    namespace = repr([str(part) for part in (traits.cache_namespace, config.embedding, config.answers)])
    secret = traits.cache_secret or load_cache_secret(config.data_path)
    return create(redis, namespace=namespace, secret=secret)


async def register_tools(components: Components, stack: AsyncExitStack) -> None:
    """Register Refdesk's own tools, prompts and resources."""
    config, engine = components.config, components.engine
    registry, conversions = components.registry, components.conversions
    shelves = DocumentLookup(conversions, engine)
    windows = await stack.enter_async_context(open_windows(config.reader))
    embed = partial(embed_with_priority, components.embedder) if components.embedder else None
    answers = await stack.enter_async_context(open_answers(config.answers, embed))
    components.monitor_dependencies(windows.dependency if windows else None, answers.dependency)
    ttl = config.cache.ttl
    federation = Federation(components.fleet, components.cache, ttl.search, can_reach)
    Documentation(engine, components.cache, ttl.search, federation).register(registry)
    blocklist = Blocklist(config.reader.blocklist_keywords, config.reader.blocklist_action)
    tools, refused = (
        components.permissions.filter_tools(components.dispatcher.tools),
        components.metrics.count_rate_limited,
    )
    Reader(shelves, windows, config.reader, blocklist, tools, components.limits(), refused).register(registry)
    sources = Sources(conversions, config.convert, _create_open_folders(config))
    Conversion(conversions, sources, blocklist).register(registry)
    projects = Projects(engine, config.projects, config.data_path, config.project)
    scopes = ScopeResolver(engine, projects)
    KnowledgeTools(engine, components.history, scopes, answers, components.cache, ttl).register(registry)
    IngestionTools(engine, scopes, sources, conversions).register(registry)
    KnowledgePrompts(engine, scopes).register(registry)
    registry.add_resources(KnowledgeResources(engine, components.history, projects))
    engine.listen(ChangePublisher(engine, registry).changed)


async def register_servers(components: Components, stack: AsyncExitStack) -> Gateway:
    """Register the tools of downstream servers. Our own tools come first and keep their names."""
    settings, enter = components.config.downstream, stack.enter_async_context
    components.fleet.invalidate()
    search = await enter(_open_search(components)) if settings.tool_search else None
    schemes = RESOURCE_TOOLSETS
    return await enter(
        open_gateway(
            components.fleet, components.registry, settings, reach=can_reach, own_schemes=schemes, search=search
        )
    )


async def register_console(components: Components, authenticate: Authenticate, stack: AsyncExitStack) -> Console:
    """Register the web console, and start sampling for its charts."""
    config, engine, rights = components.config, components.engine, components.permissions
    keys = KeyRing(KeyFile(config.data_path / FILE_NAME), config.auth.keys, authenticate.keys.check_soon)
    about = partial(_describe_server, components, authenticate)
    history = History(components.metrics, leave_out=CONSOLE)
    servers = Servers(components.fleet, components.own_servers, rights, can_reach, can_reach_any, history)
    activity = Activity(history, engine, servers, partial(_is_available, components))
    feed = Feed(engine, servers, activity, rights)
    console = Console(about, rights, ConsoleDocuments(engine), servers, keys, engine, activity, feed)
    console.register(components.registry.add_method)
    await stack.enter_async_context(in_background(activity.run()))
    return console


def _describe_server(components: Components, authenticate: Authenticate) -> dict[str, Any]:
    """Return what the console shows about the server to authenticated callers."""
    config, engine = components.config, components.engine
    own_writer = engine.traits.name if engine.writer is not None else None
    return {
        "auth_required": config.auth.required,
        "has_keys": authenticate.has_keys,
        "version": __version__,
        "engine": engine.traits.name,
        "embedding": engine.traits.embedding_model,
        "answers": config.answers.model if config.answers.api_url is not None else own_writer,
        "max_upload_bytes": MAX_FILE_BYTES,
        "project": config.project,
    }


def _is_available(components: Components, caller: Caller, name: str) -> bool:
    """Return whether a tool is available to a caller."""
    tool = components.registry.find_tool(name)
    return tool is not None and tool.toolset in components.permissions.toolsets(caller) and tool.is_open_to(caller)


@asynccontextmanager
async def _watch_server_files(config: Config, fleet: Fleet, log: Log, *, servers: bool) -> AsyncIterator[OwnServers]:
    """Start the configured servers, and apply changes of the files that configure them."""
    if not servers:
        yield OwnServers(config, os.environ, _ignore_reload)
        return
    found = load_servers(config, os.environ)
    for warning in found.warnings:
        log.events.warning("downstream.settings", detail=warning)

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        secrets = [secret for settings in servers.values() for secret in iter_secrets(settings)]
        log.mask_secrets([*iter_secrets(config), *secrets])
        await fleet.apply(servers)

    await apply(found.servers)
    watcher = ServerFilesWatcher(
        list_server_files(config), lambda: load_servers(config, os.environ).servers, apply, known=found.servers
    )
    task = asyncio.create_task(watcher.follow())
    try:
        yield OwnServers(config, os.environ, watcher.reload_servers)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _ignore_reload() -> None:
    """Do nothing: the application was opened without servers."""


def _open_search(components: Components) -> AbstractAsyncContextManager[ToolSearch]:
    embed = partial(embed_with_priority, components.embedder) if components.embedder else None
    tools = components.permissions.filter_tools(components.dispatcher.open_tools)
    registry = components.registry
    resolve = ResolveNames(registry.find_tool, registry.find_prompt)
    handle = chain([resolve, components.permissions], components.dispatcher)
    return open_tool_search(tools, handle, registry, embed)


def _create_open_folders(config: Config) -> OpenFolders:
    """Return the folders whose files tools may open, without Refdesk's own files."""
    return OpenFolders(default_roots(config.convert, Path.cwd(), Path.home()), list_own_files(config))
