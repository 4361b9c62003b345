"""The application's components, built in the order of their dependencies, and the tools registered with them.

Only this module and `app` see the whole configuration and every component.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from refdesk.answers import open_answers
from refdesk.cache.cache import Cache
from refdesk.cache.redis import load_cache_secret
from refdesk.calls import CONSOLE, LOCAL, Answer, Call, Caller, Handler, chain
from refdesk.config.models import Config
from refdesk.config.server_model import McpServerConfig
from refdesk.console.console import Console
from refdesk.console.document_methods import ConsoleDocuments
from refdesk.console.feed import Feed
from refdesk.console.server_methods import Servers
from refdesk.documents.conversions import Conversions
from refdesk.documents.file_limits import MAX_FILE_BYTES
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.server_log import ServerLog
from refdesk.downstream.files.servers_file import OwnServers, ServerFilesWatcher, list_server_files, load_servers
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.engines.base import LACKS_SHARED, Engine, EngineTraits
from refdesk.engines.embedded.embedding import Embedder, embed_with_priority
from refdesk.engines.storage.search_history import SearchHistory, open_search_history
from refdesk.errors import DependencyError
from refdesk.inbound.requests import LOOPBACK_NAMES
from refdesk.ingest.ingest_pipeline import find_engine_folder, list_own_files, open_pipeline
from refdesk.manual import index_manual
from refdesk.policy.keys import FILE_NAME, KeyFile, KeyRing
from refdesk.policy.policies import Authenticate, Permissions, ResolveNames, can_reach, can_reach_any
from refdesk.resilience.dependency import BreakerLog, Dependency
from refdesk.resilience.limits import MAX_BUCKETS_PER_OWNER, MemoryRateLimiter, RateLimiter, RedisRateLimiter
from refdesk.resilience.redis_connection import RedisLink, log_redis_state, open_redis
from refdesk.support.tasks import in_background
from refdesk.telemetry.log import Log, iter_secrets
from refdesk.telemetry.metric_history import History
from refdesk.telemetry.metrics import Metrics
from refdesk.tools.budget import Blocklist, DocumentRateLimiter
from refdesk.tools.collection_scope import Projects, ScopeResolver
from refdesk.tools.conversion import Conversion, Sources, default_roots
from refdesk.tools.documentation import Documentation
from refdesk.tools.federation import Federation
from refdesk.tools.gateway import Gateway
from refdesk.tools.ingestion import IngestionTools
from refdesk.tools.r2r import KnowledgeTools
from refdesk.tools.r2r_resources import KnowledgePrompts, KnowledgeResources, publish_changes
from refdesk.tools.reader import Reader
from refdesk.tools.registry import Dispatcher, Registry
from refdesk.tools.tool_search import ToolSearch
from refdesk.tools.window_service import open_windows
from refdesk.version import __version__

RESOURCE_TOOLSETS = {"techdoc": "docs", "r2r": "r2r", "document": "convert", "refdesk": "downstream"}
"""Toolset of each resource URI scheme."""


@dataclass(eq=False, repr=False)
class Desk:
    """The open application: its components, used by transports, the CLI and programs."""

    config: Config
    log: Log
    metrics: Metrics
    registry: Registry
    dispatcher: Dispatcher
    permissions: Permissions
    authenticate: Authenticate
    conversions: Conversions
    embedder: Embedder | None
    engine: Engine
    history: SearchHistory
    fleet: Fleet
    own_servers: OwnServers
    redis: RedisLink | None
    cache: Cache
    blocklist: Blocklist
    # Built from the components above.
    gateway: Gateway = field(init=False)
    console: Console | None = field(default=None, init=False)
    handle: Handler = field(init=False)
    dependencies: list[Dependency] = field(default_factory=list, init=False)
    """External dependencies that are monitored."""

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, caller: Caller = LOCAL) -> Answer:
        """Call a tool by name, as the local user unless a caller is given."""
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        return await self.handle(Call("tools/call", {"name": tool, "arguments": given}, caller))

    async def servers_ready(self) -> dict[str, str]:
        """Wait until the downstream servers have listed their tools or can't be connected to; return their states."""
        return await self.fleet.wait_until_settled()

    async def measure(self) -> None:
        """Update the metrics that are only measured on request."""
        with suppress(DependencyError):  # reported by `readiness`, and the last values stay
            for status, documents in (await self.engine.waiting()).items():
                self.metrics.set_queue_length(status, documents)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the server is ready, and the state of each component.

        Refdesk works without its cache and its downstream servers, so Redis only costs speed while it's down, and a
        server with an error only means `degraded`.
        """
        redis = {} if self.redis is None else {"redis": self.redis.describe()}
        checks: dict[str, Any] = {
            **{dependency.name: dependency.describe() for dependency in self.dependencies},
            "convert": self.conversions.check(),
            "cache": {"state": "ok", "entries": len(self.cache), "bytes": self.cache.bytes, **redis},
            **self.authenticate.describe(),
        }
        servers, problem = self.fleet.describe(), self.own_servers.find_problem()
        if servers or problem:
            is_healthy = not problem and all(server["state"] != "Error" for server in servers.values())
            if self.config.auth.required:  # the endpoint is public
                servers = {name: {"state": server["state"]} for name, server in servers.items()}
                problem = problem and "a file of servers is invalid; see the log"
            checks["downstream"] = {"state": "ok" if is_healthy else "degraded", "servers": servers}
            if problem:
                checks["downstream"]["problem"] = problem
        try:
            engine = {"state": "ok", "detail": await self.engine.check()}
            if problems := self.engine.problems():
                cause = "see the log" if self.config.auth.required else problems[0]  # the endpoint is public
                engine = {"state": "degraded", "detail": f"not all documents can be used ({len(problems)}): {cause}"}
        except DependencyError as error:
            return False, {"engine": {"state": "down", "detail": error.detail}, **checks}
        return True, {"engine": engine, **checks}

    def create_limiter(self, max_of_one: int = MAX_BUCKETS_PER_OWNER) -> RateLimiter:
        """Create a rate limiter, shared through Redis if configured."""
        local = MemoryRateLimiter(max_of_one=max_of_one)
        is_shared = self.config.rate_limits.type == "redis"
        return RedisRateLimiter(self.redis, local) if is_shared and self.redis else local

    def monitor_dependencies(self, *dependencies: Dependency | None) -> None:
        """Monitor the external dependencies of components. None is the dependency of a component without one."""
        for dependency in filter(None, dependencies):
            dependency.watch(self.metrics, BreakerLog())
            self.dependencies.append(dependency)


async def open_components(
    config: Config, log: Log, authenticate: Authenticate, stack: AsyncExitStack, *, servers: bool
) -> Desk:
    """Open the components. `servers` is whether to start downstream servers."""
    enter = stack.enter_async_context
    metrics, registry = Metrics(), Registry()
    # First, because servers start in the background.
    fleet = await enter(_open_fleet(config, registry, metrics, log))
    own_servers = await enter(_watch_server_files(config, fleet, log, servers=servers))

    def trusts_all_callers() -> bool:
        """Return whether every caller is an administrator: without keys, on loopback only."""
        is_private = config.server.is_loopback and LOOPBACK_NAMES.issuperset(config.server.allowed_hosts)
        has_keys = authenticate.has_keys or (config.data_path / FILE_NAME).exists()
        return is_private and not config.auth.required and not has_keys

    scope_roles = config.auth.oauth.scope_roles
    permissions = Permissions(config.toolsets, registry.find_tool, RESOURCE_TOOLSETS, scope_roles, trusts_all_callers)
    pipeline = await enter(open_pipeline(config, log, metrics))
    engine, embedder = pipeline.engine, pipeline.embedder
    if LACKS_SHARED not in engine.traits.lacks:
        await index_manual(engine)
    history = await enter(open_search_history(find_engine_folder(config)))
    needs_redis = "redis" in (config.cache.type, config.rate_limits.type)
    redis = await enter(open_redis(config.cache.redis, changed=partial(log_redis_state, log))) if needs_redis else None
    cache = await enter(aclosing(_create_cache(config, engine.traits, redis, metrics)))
    if not engine.traits.has_certain_revision:
        engine.listen(cache.changed)
    dispatcher = Dispatcher(registry, config.toolsets, config.server.page_size)
    desk = Desk(
        config, log, metrics, registry, dispatcher, permissions, authenticate, pipeline.conversions, embedder, engine,
        history, fleet, own_servers, redis, cache,
        Blocklist(config.reader.blocklist_keywords, config.reader.blocklist_action),
    )  # fmt: skip
    desk.monitor_dependencies(*engine.dependencies, embedder.dependency if embedder else None)
    return desk


def _open_fleet(config: Config, registry: Registry, metrics: Metrics, log: Log) -> AbstractAsyncContextManager[Fleet]:
    """Open the fleet, without any servers yet."""
    folder = config.data_path / "downstream"
    breaker_log = BreakerLog()

    def connect(name: str, settings: McpServerConfig, **more: Any) -> Connection:
        connection = Connection(name, settings, on_stderr_line=ServerLog(folder, name, iter_secrets(settings)), **more)
        connection.dependency.watch(metrics, breaker_log)
        return connection

    return Fleet(config.downstream, folder, reserved=registry.is_own, counts=metrics, connect=connect).run({})


def _create_cache(config: Config, traits: EngineTraits, redis: RedisLink | None, metrics: Metrics) -> Cache:
    """Create the cache. If it's in Redis, processes with the same documents share it."""
    create = partial(Cache, config.cache, counted=metrics.count_cache_request, holds=metrics.set_cache_size)
    if redis is None or config.cache.type != "redis":
        return create()
    namespace = repr([str(part) for part in (traits.cache_namespace, config.embedding, config.answers)])
    secret = traits.cache_secret or load_cache_secret(config.data_path)
    return create(redis, namespace=namespace, secret=secret)


@asynccontextmanager
async def _watch_server_files(config: Config, fleet: Fleet, log: Log, *, servers: bool) -> AsyncIterator[OwnServers]:
    """Start the configured servers, and apply changes of the files that configure them."""
    if not servers:

        async def ignore_reload() -> None:
            return

        yield OwnServers(config, os.environ, ignore_reload)
        return
    found = load_servers(config, os.environ)
    for warning in found.warnings:
        log.events.warning("downstream.settings", detail=str(warning))

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        secrets = [secret for settings in servers.values() for secret in iter_secrets(settings)]
        log.mask_secrets([*iter_secrets(config), *secrets])
        await fleet.apply(servers)

    await apply(found.servers)
    watcher = ServerFilesWatcher(
        list_server_files(config), lambda: load_servers(config, os.environ).servers, apply, found.servers
    )
    async with in_background(watcher.follow()):
        yield OwnServers(config, os.environ, watcher.reload_servers, lambda: watcher.problem)


async def register_tools(desk: Desk, stack: AsyncExitStack) -> None:
    """Register Refdesk's own tools, prompts and resources."""
    config, engine, registry, conversions = desk.config, desk.engine, desk.registry, desk.conversions
    windows = await stack.enter_async_context(open_windows(config.reader))
    embed = partial(embed_with_priority, desk.embedder) if desk.embedder else None
    answers = await stack.enter_async_context(open_answers(config.answers, embed))
    desk.monitor_dependencies(windows.dependency if windows else None, answers.dependency)
    ttl = config.cache.ttl
    federation = Federation(desk.fleet, desk.cache, ttl.search, can_reach)
    Documentation(engine, desk.cache, ttl.search, federation).register(registry)
    blocklist = desk.blocklist
    tools = desk.permissions.filter_tools(desk.dispatcher.tools)
    calls, tokens = config.reader.rate_limit_calls, config.reader.rate_limit_tokens
    rate = DocumentRateLimiter(calls, tokens, desk.create_limiter(), desk.metrics.count_rate_limited)
    Reader(engine, conversions, windows, config.reader, blocklist, tools, rate).register(registry)
    roots = default_roots(config.convert, Path.cwd(), Path.home())
    sources = Sources(conversions, config.convert, roots, list_own_files(config))
    Conversion(conversions, sources, blocklist, rate).register(registry)
    projects = Projects(engine, config.projects, config.data_path, config.project)
    scopes = ScopeResolver(engine, projects)
    KnowledgeTools(engine, desk.history, scopes, answers, desk.cache, ttl, blocklist).register(registry)
    IngestionTools(engine, scopes, sources, conversions).register(registry)
    KnowledgePrompts(engine, scopes).register(registry)
    registry.add_resources(KnowledgeResources(engine, desk.history, projects))
    publish_changes(engine, registry)


async def register_servers(desk: Desk, stack: AsyncExitStack) -> None:
    """Register the tools of downstream servers. Our own tools come first and keep their names."""
    settings, registry, search = desk.config.downstream, desk.registry, None
    desk.fleet.invalidate()
    if settings.tool_search:
        embed = partial(embed_with_priority, desk.embedder) if desk.embedder else None
        tools = desk.permissions.filter_tools(desk.dispatcher.open_tools)
        resolve = ResolveNames(registry.find_tool, registry.find_prompt)
        handle = chain([resolve, desk.permissions], desk.dispatcher)
        search = await stack.enter_async_context(aclosing(ToolSearch(tools, handle, registry, embed)))
    gateway = Gateway(desk.fleet, registry, settings, reach=can_reach, own_schemes=RESOURCE_TOOLSETS, search=search)
    desk.gateway = await stack.enter_async_context(aclosing(gateway))


async def register_console(desk: Desk, stack: AsyncExitStack) -> None:
    """Register the web console, and start sampling for its charts."""
    config, engine, rights = desk.config, desk.engine, desk.permissions
    keys = KeyRing(KeyFile(config.data_path / FILE_NAME), config.auth.keys, desk.authenticate.keys.check_soon)
    history = History(desk.metrics, leave_out=CONSOLE)
    servers = Servers(desk.fleet, desk.own_servers, rights, can_reach, can_reach_any, history)
    own_writer = engine.traits.name if engine.writer is not None else None

    def describe_server() -> dict[str, Any]:
        """Return what the console shows about the server to authenticated callers."""
        return {
            "auth_required": config.auth.required,
            "has_keys": desk.authenticate.has_keys,
            "version": __version__,
            "engine": engine.traits.name,
            "embedding": engine.traits.embedding_model,
            "answers": config.answers.model if config.answers.api_url is not None else own_writer,
            "max_upload_bytes": MAX_FILE_BYTES,
            "project": config.project,
        }

    def is_available(caller: Caller, name: str) -> bool:
        """Return whether a tool is available to a caller."""
        tool = desk.registry.find_tool(name)
        return tool is not None and tool.toolset in rights.toolsets(caller) and tool.is_open_to(caller)

    feed = Feed(engine, servers, rights, history, is_available, desk.blocklist.mask_values)
    desk.console = Console(describe_server, rights, ConsoleDocuments(engine), servers, keys, engine, feed)
    desk.console.register(desk.registry.add_method)
    await stack.enter_async_context(in_background(feed.run()))
