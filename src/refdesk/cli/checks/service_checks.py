"""Checks of services: the embedding model, Redis, R2R, the chat model that writes answers, and MCP servers."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson
from yarl import URL

from refdesk.cli.checks.finding import CheckContext, Finding, fail, ok, warn
from refdesk.cli.server_trial import probe_server
from refdesk.config import AnswersConfig, McpServerConfig
from refdesk.downstream.files.servers_file import load_servers
from refdesk.engines.embedded.embedding import open_embedder
from refdesk.errors import ConfigError, RefdeskError
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.telemetry import Metrics

SENTENCE = "How do I start the server?"
"""Text embedded to test the model."""

MAX_MODELS_BYTES = 16 * 1024 * 1024
"""Maximum length of a model list. Those of large providers have a few hundred kilobytes."""

MAX_CONCURRENT = 4
"""Servers started at the same time. Each is a process, and a machine has few cores."""

CLOSING_SECONDS = 2.0
"""Part of the check's time reserved for stopping the server."""


async def check_embedding(context: CheckContext) -> Sequence[Finding]:
    """Check that a text can be embedded."""
    settings = context.config.embedding
    if context.config.r2r.api_url is not None:
        return [ok("not needed: R2R uses its own model")]
    if settings.source == "none":
        return [ok("disabled: search is full-text only")]
    fix = {
        "builtin": "reinstall Refdesk, or set embedding.source to none for full-text search only",
        "onnx": "check embedding.model_path, which needs model.onnx and vocab.txt",
        "endpoint": "check embedding.api_url, embedding.api_key and embedding.api_model",
    }[settings.source]
    try:
        async with open_embedder(settings) as embedder:
            assert embedder is not None
            vector = await embedder.embed_query(SENTENCE)
    except (RefdeskError, OSError, ImportError) as error:
        return [fail(f"the embedding model does not work: {error}", fix)]
    return [ok(f"{embedder.name} works, with {len(vector)} dimensions")]


async def check_cache(context: CheckContext) -> Sequence[Finding]:
    """Check that Redis responds, if it is configured for the cache or the rate limits."""
    settings = context.config.cache
    if "redis" not in (settings.type, context.config.rate_limits.type):
        return [ok("in memory")]
    from refdesk.resilience.redis_connection import open_redis

    reasons: list[str] = []
    async with open_redis(settings.redis, changed=lambda state, reason: reasons.append(reason)) as link:
        if not link.is_away:
            return [ok(f"Redis answers at {settings.redis.url}")]
    why = f": {reasons[0].removeprefix('Redis does not answer: ')}" if reasons and reasons[0] else ""
    fix = "start Redis, or correct cache.redis.url; until then each process has its own cache"
    return [fail(f"Redis does not answer at {settings.redis.url!s}{why}", fix)]


async def check_r2r(context: CheckContext) -> Sequence[Finding]:
    """Check that R2R responds and accepts the account."""
    settings = context.config.r2r
    if settings.api_url is None:
        return [ok("not used: documents are stored locally")]
    from refdesk.engines.r2r.client import open_client
    from refdesk.resilience.dependency import SERVICE, Dependency

    dependency = Dependency("r2r", SERVICE, concurrency=1)
    try:
        async with open_client(settings, dependency, Metrics()) as client:
            await client.check()
            collections = await client.collections()
    except RefdeskError as error:
        return [fail(error.detail, "check r2r.api_url and the account in r2r.email and r2r.password, or r2r.api_key")]
    return [ok(f"R2R answers at {settings.api_url}; the account has {len(collections):,} collections")]


async def check_answers(context: CheckContext) -> Sequence[Finding]:
    """Check that the chat API responds and accepts the key. No tokens are generated, so it costs nothing."""
    settings = context.config.answers
    if settings.api_url is None:
        return [ok("no model is set: `refdesk ask` quotes the documents")]
    url, login = split_login(URL(settings.api_url.get_secret_value()))
    authorization = login or (f"Bearer {settings.api_key.get_secret_value()}" if settings.api_key else None)
    try:
        async with (
            open_http_session(url, connect_seconds=context.timeout, uses_proxy=True) as session,
            session.get(
                url.with_path(url.path.rstrip("/") + "/models", keep_query=True),
                headers={"Authorization": authorization} if authorization else {},
                timeout=aiohttp.ClientTimeout(total=context.timeout),
                allow_redirects=False,
            ) as response,
        ):
            body = await read_body(response, MAX_MODELS_BYTES, lambda: aiohttp.ClientPayloadError("answer is too long"))
    except (aiohttp.ClientError, TimeoutError) as error:
        # The cause has the reason without the details of the client.
        why = str(error.__cause__ or "") or str(error) or type(error).__name__
        return [fail(f"no answer from {settings.api_url}: {why}", "start the service, or correct answers.api_url")]
    return [_check_models(settings, response.status, body)]


def _check_models(settings: AnswersConfig, status: int, body: bytes) -> Finding:
    if status in (401, 403):
        return fail(f"{settings.api_url} rejects the key (HTTP {status})", "check answers.api_key")
    if not 200 <= status < 300:
        text = f"{settings.api_url} answers, but does not list its models (HTTP {status})"
        return warn(text, "try `refdesk ask`; some APIs have no model list")
    try:
        names = [str(one["id"]) for one in orjson.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return warn(f"{settings.api_url} answers, but not with a list of models", "try `refdesk ask`")
    if settings.model in names:
        return ok(f"{settings.api_url} offers {settings.model}")
    return warn(
        f"{settings.api_url} does not list {settings.model}", f"set answers.model to one of {', '.join(names[:5])}"
    )


async def check_servers(context: CheckContext) -> Sequence[Finding]:
    """Check each MCP server. Servers of a running Refdesk aren't started: a second copy could interfere with them."""
    try:
        found = load_servers(context.config, context.environ)
    except ConfigError as error:
        return [fail(problem, "`refdesk servers` lists them; fix or remove it") for problem in error.problems]
    if not found.servers:
        return [ok("no servers; `refdesk servers add` adds one")]
    # The findings already include what would be logged.
    logging.getLogger("refdesk").addHandler(logging.NullHandler())
    live = context.desk.server_states if context.desk else {}
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def check(name: str, server: McpServerConfig) -> Finding:
        async with slots:
            return await _check_server(name, server, live.get(name), context)

    findings = await asyncio.gather(*(check(name, server) for name, server in found.servers.items()))
    return [*findings, *(warn(str(one), "remove or rename it") for one in found.warnings)]


async def _check_server(name: str, server: McpServerConfig, live: Any, context: CheckContext) -> Finding:
    if not server.enabled:
        return ok(f"{name}: disabled")
    log = f"`refdesk servers logs {name}` shows its output"
    if isinstance(live, dict):
        state, why = live.get("state"), f": {live['message']}" if live.get("message") else ""
        text = f"{name}: {state}{why}, reported by the running server"
        return fail(text, log) if state == "Error" else ok(text)
    if server.command is not None and not _find_program(server, context):
        return fail(f"{name}: program {server.command!r} not found", "install it, or use its full path")
    try:
        async with asyncio.timeout(max(context.timeout - CLOSING_SECONDS, 1)):
            facts = await probe_server(name, server, context.config.downstream.protocol_version)
    except RefdeskError as error:
        return fail(f"{name}: {error.detail}", f"`refdesk servers test {name}` tries again")
    except TimeoutError:
        return fail(f"{name}: timed out", f"`refdesk servers test {name}` waits longer")
    return ok(f"{name}: {facts['tools']} tools, connected in {facts['connect_seconds']:.1f} s")


def _find_program(server: McpServerConfig, context: CheckContext) -> str | None:
    """Return the path of the server's program, looked up as when starting it."""
    path = server.env["PATH"].get_secret_value() if "PATH" in server.env else context.environ.get("PATH")
    folder = str(server.cwd) if server.cwd else os.getcwd()
    command = os.path.expanduser(server.command or "")
    return shutil.which(os.path.join(folder, command) if os.sep in command else command, path=path)
