"""Checks of `refdesk doctor`: this machine, the documents, access and clients, then the services. All are read-only."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import socket
import sqlite3
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from refdesk.cli.client_setup import DEFAULT_NAME
from refdesk.cli.running_desk import RunningDesk
from refdesk.cli.server_trial import probe_server
from refdesk.config.models import AnswersConfig, Config
from refdesk.config.rules import require_support
from refdesk.config.server_entries import read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.files.client_files import ClientFile, find_project_folder, find_servers, list_client_files
from refdesk.downstream.files.servers_file import is_this_desk, load_servers
from refdesk.engines.embedded.embedding import open_embedder
from refdesk.engines.embedded.fulltext import FullText, IndexDamaged
from refdesk.engines.embedded.tenant_store import SCHEMA_VERSION
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.storage.databases import DATABASE, describe_loss
from refdesk.engines.storage.records import read_last_change
from refdesk.errors import ConfigError, RefdeskError
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.support.extras import build_install_command
from refdesk.telemetry.metrics import Metrics
from refdesk.version import __version__

EXTRAS = {"ocr": "rapidocr", "redis": "redis", "otel": "opentelemetry-sdk", "sentry": "sentry-sdk"}
"""Extras, each with a package that only this extra installs."""

LOW_SPACE = 1_073_741_824
CRITICAL_SPACE = 104_857_600
"""Free bytes on the disk. A large documentation set takes some hundred megabytes, and a full disk stops all writes."""

PAGES = Path(__file__).parents[1] / "console" / "pages"

MAX_CHECKED_BYTES = 268_435_456
"""Largest database to run `quick_check` on. Larger ones take too long."""

MAX_TENANTS = 20
"""Tenants checked. The console shows the others."""

LOCKS = Path("/proc/locks")
"""Where Linux lists lock holders, so that no lock has to be taken to find out."""

PORT_FIX = "choose another with --port or server.port, or stop that program"

SENTENCE = "How do I start the server?"
"""Text embedded to test the model."""

MAX_MODELS_BYTES = 16 * 1024 * 1024
"""Maximum length of a model list. Those of large providers have a few hundred kilobytes."""

MAX_CONCURRENT = 4
"""Servers started at the same time. Each is a process, and a machine has few cores."""

CLOSING_SECONDS = 2.0
"""Part of the check's time reserved for stopping the server."""


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one thing in a sentence, with a suggested fix if it isn't ok.

    `warn` is what works but needs attention, and `fail` what doesn't work.
    """

    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


def format_count(number: int, thing: str) -> str:
    """Format a number with its noun, in the plural if needed."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Input of all checks."""

    config: Config
    config_file: Path | None
    problems: tuple[str, ...]
    """Why the configuration is invalid. If set, `config` holds the defaults."""
    desk: RunningDesk | None
    """The server at the configured address."""
    environ: Mapping[str, str]
    home: Path
    cwd: Path
    timeout: float
    """Time limit per check, in seconds."""


# Installation


def check_python(context: CheckContext) -> Iterator[Finding]:
    """Report the versions and the installed extras."""
    installed, missing = [], []
    for extra, package in EXTRAS.items():
        try:
            distribution(package)
            installed.append(extra)
        except PackageNotFoundError:
            missing.append(extra)
    versions = f"Refdesk {__version__} on Python {platform.python_version()}"
    extras = f"extras {', '.join(installed)}" if installed else "no extras"
    hint = f"; not installed: {', '.join(missing)} ({build_install_command(missing[0])})" if missing else ""
    yield ok(f"{versions} with {extras}{hint}")


def check_config(context: CheckContext) -> Iterator[Finding]:
    """Check whether a server could start with the configuration."""
    file = context.config_file
    if context.problems:
        fix = "fix the environment variables that it names"
        if file is not None:
            fix = f"edit {file}" if file.exists() else "name an existing file; `refdesk init` writes one to start from"
        yield from (fail(problem, fix) for problem in context.problems)
        yield warn("the other checks use the defaults", "fix the configuration, then run this again")
        return
    try:
        require_support(context.config)
    except ConfigError as error:
        yield from (fail(problem, "install what is missing, or disable it") for problem in error.problems)
        return
    yield ok(str(file) if file else "no configuration file, which is optional; `refdesk init` writes one")
    yield from (warn(one, "remove or correct it") for one in context.config.warnings)


def check_data(context: CheckContext) -> Iterator[Finding]:
    """Check whether the data folder can be written to."""
    folder = context.config.data_path
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        yield fail(f"{existing} is not a folder", "choose another one with --data or REFDESK_DATA")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = f"make {folder} writable, or choose another folder with --data"
        yield fail(f"{existing} is not writable", fix)
        return
    owner = existing.stat().st_uid
    if existing == folder and hasattr(os, "geteuid") and owner not in (os.geteuid(), 0):
        yield warn(f"{folder} belongs to user {owner}", f"run as that user, or: chown -R {os.geteuid()} {folder}")
    free = shutil.disk_usage(existing).free
    text = f"{folder}{'' if existing == folder else ', created when needed'}, {free / 1e9:,.1f} GB free"
    if free < CRITICAL_SPACE:
        yield fail(text, "free disk space; no more documents can be added")
    elif free < LOW_SPACE:
        yield warn(text, "free disk space before you add more documents")
    else:
        yield ok(text)


def check_console(context: CheckContext) -> Iterator[Finding]:
    """Check whether the console's pages are installed."""
    if not (PAGES / "index.html").is_file():
        yield fail("the pages of the console are missing", "reinstall: pip install --force-reinstall refdesk")
        return
    where = context.config.own_url.removesuffix("/mcp") + "/console"
    running = context.desk is not None and context.desk.is_refdesk
    yield ok(f"at {where}" if running else f"at {where} once `refdesk serve` runs")


# Documents


def check_engine(context: CheckContext) -> Iterator[Finding]:
    """Check each tenant's documents."""
    folders = _list_tenants(context)
    if context.config.r2r.api_url is not None:
        yield ok("documents are stored in R2R")
    elif not folders:
        yield ok("no documents yet; `refdesk add FOLDER` adds some")
    else:
        for folder in folders[:MAX_TENANTS]:
            if loss := describe_loss(folder):
                what, fix = loss.split(". ", 1)
                yield fail(what, fix.rstrip("."))
                continue
            try:
                with closing(_open_database(folder)) as database:
                    yield from list(_check_database(folder, database))
            except sqlite3.Error as error:
                fix = "restore a backup of the folder, or remove it and add the documents again"
                yield fail(f"{folder / DATABASE} cannot be read: {error}", fix)


def _list_tenants(context: CheckContext) -> list[Path]:
    """List the folders that have a database, or indexes of a lost one."""
    folders = (context.config.data_path / "tenants").glob("*/")
    return sorted(folder for folder in folders if (folder / DATABASE).exists() or describe_loss(folder))


def _open_database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=ro", uri=True, timeout=1)


def _check_database(folder: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        text = f"{folder} was written by another version of Refdesk (schema {version}, this one reads {SCHEMA_VERSION})"
        yield fail(text, "use another --data folder, or remove this one and add the documents again")
        return
    if (folder / DATABASE).stat().st_size <= MAX_CHECKED_BYTES:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            yield fail(f"{folder / DATABASE} is damaged: {found}", "restore a backup, or add the documents again")
            return
    tenant = str(database.execute("SELECT tenant FROM owner").fetchone()[0])
    counts = dict(database.execute("SELECT stage, count(*) FROM documents GROUP BY stage").fetchall())
    collections = database.execute("SELECT count(*) FROM collections").fetchone()[0]
    total, failed = sum(counts.values()), counts.get("failed", 0)
    waiting = total - failed - counts.get("success", 0)
    whose = "" if tenant == "default" else f" of tenant {tenant!r}"
    under_way = f", {waiting:,} of them queued" if waiting else ""
    yield ok(f"{format_count(total, 'document')}{whose} in {format_count(collections, 'collection')}{under_way}")
    if failed:
        fix = "run `refdesk documents --status failed` for the reasons"
        yield warn(f"{format_count(failed, 'document')}{whose} failed to index", fix)
    last = read_last_change(database)
    try:
        mark = FullText(folder / "fulltext").mark
        Vectors(folder / "vectors")
    except (IndexDamaged, OSError) as error:
        yield fail(f"an index of {folder} is damaged: {error}", "run `refdesk reindex` to rebuild the indexes")
        return
    if mark > last:
        text = f"{folder / DATABASE} is older than the full-text index: documents may have been lost"
        yield warn(text, f"restore a newer {DATABASE} from a backup, or add the lost documents again")
    if mark < last:
        fix = "`refdesk serve` or the next `refdesk add` updates it"
        yield warn(f"the full-text index of tenant {tenant!r} lacks the latest changes", fix)


def check_locks(context: CheckContext) -> Iterator[Finding]:
    """Report who holds the writer locks, according to the kernel."""
    folders = _list_tenants(context)
    try:
        rows = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        yield ok("this system does not report lock holders")
        return
    # Processes that hold a lock on a whole file, by inode.
    holders = {int(row[5].rpartition(":")[2]): int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK"}
    is_writing, waiting = False, 0
    for folder in folders:
        lock = folder / "writer.lock"
        if lock.exists() and (pid := holders.get(lock.stat().st_ino)):
            is_writing = True
            yield ok(f"process {pid} writes {folder}")
    if is_writing:
        return
    for folder in folders:
        try:
            with closing(_open_database(folder)) as database:
                statement = "SELECT count(*) FROM documents WHERE stage NOT IN ('success', 'failed')"
                waiting += int(database.execute(statement).fetchone()[0])
        except sqlite3.Error:
            continue  # reported by check_engine
    if waiting and context.config.r2r.api_url is None:
        text = f"{format_count(waiting, 'document')} queued, but no process is indexing"
        yield warn(text, "`refdesk serve` or the next `refdesk add` continues with them")
    else:
        yield ok("no process is writing")


# Access


def check_port(context: CheckContext) -> Iterator[Finding]:
    """Check whether Refdesk runs at the configured address, or could."""
    server, desk, url = context.config.server, context.desk, context.config.own_url
    if desk is not None and not desk.is_refdesk:
        yield fail(f"another program answers at {server.host}:{server.port}", PORT_FIX)
    elif desk is not None and desk.version != __version__:
        text = f"Refdesk {desk.version} runs at {url}, but this is {__version__}"
        yield warn(text, "restart the server to run this version")
    elif desk is not None:
        yield ok(f"Refdesk {desk.version} runs at {url}")
        for name, part in desk.checks.items():
            if isinstance(part, dict) and part.get("state") not in ("ok", "closed", None) and name != "downstream":
                detail = f": {part['detail']}" if part.get("detail") else ""
                yield warn(f"the running server reports {name} as {part['state']}{detail}", "see its log")
    elif server.port == 0:
        yield ok("the server will use any free port")
    else:
        yield _check_address(server.host, server.port)


def _check_address(host: str, port: int) -> Finding:
    """Check that the address can be bound, releasing it at once."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError as error:
        return fail(f"cannot listen on {host}:{port}: {error.strerror or error}", PORT_FIX)
    return ok(f"{host}:{port} is free; `refdesk serve` starts the server there")


def check_keys(context: CheckContext) -> Iterator[Finding]:
    """Check the API keys and whether anonymous access is intended."""
    config = context.config
    file = KeyFile(config.data_path / FILE_NAME)
    try:
        stored = file.read()
    except ConfigError as error:
        yield from (fail(problem, "fix the file, or restore a backup") for problem in error.problems)
        return
    count = len(stored) + len(config.auth.keys)
    there_are = f"there {'is' if count == 1 else 'are'} {count}"
    if stored and file.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warn(f"other users on this machine can read {file.path}", f"chmod 600 {file.path}")
    if expired := [key.name for key in stored if key.is_over(datetime.now(UTC))]:
        yield warn(f"expired: {', '.join(expired)}", "run `refdesk keys revoke NAME`, then `refdesk keys make NAME`")
    if config.auth.required:
        tokens = f", or an access token of {config.auth.oauth.issuer}" if config.auth.oauth.issuer else ""
        yield ok(f"a key is required; {there_are}{tokens}")
    elif not config.server.is_loopback:
        fix = "set MCP_AUTH_REQUIRED=true and run `refdesk keys make NAME`"
        yield warn("other machines can call without a key", fix)
    elif count:
        text = f"{there_are} {'key' if count == 1 else 'keys'}, but none is required"
        yield warn(text, "set auth.required (MCP_AUTH_REQUIRED=true)")
    else:
        yield ok("no key is required, and only this machine can call")


def check_clients(context: CheckContext) -> Iterator[Finding]:
    """Check the clients whose settings name this server."""
    files = list_client_files(context.home, context.cwd, sys.platform)
    existing = {file.path: file for file in files if os.path.exists(file.path)}.values()
    found = [finding for file in existing for finding in _check_client(file, context)]
    yield from found or [ok("no client is configured; `refdesk install claude-code` configures one")]


def _check_client(file: ClientFile, context: CheckContext) -> Iterator[Finding]:
    try:
        found = find_servers(file.path, context.cwd)
    except ConfigError as error:
        yield from (warn(problem, f"fix it; {file.client} cannot read it either") for problem in error.problems)
        return
    who = f"{file.client} ({file.path})"
    scope = "" if find_project_folder(file.path, context.home) is None else " --scope project"
    fix = f"run `refdesk install {file.client}{scope}`"
    for name, entry in (found.entries if found else {}).items():
        read = read_entries({name: entry}, context.environ, source="", folder=context.cwd)
        server = read.servers.get(name)
        if server is not None and (is_this_desk(server, context.config) or name == DEFAULT_NAME):
            yield _check_connection(who, fix, name, server, context)
        elif server is None and name == DEFAULT_NAME:
            yield from (warn(f"{who}: {fault}", fix) for fault in read.faults)


def _check_connection(who: str, fix: str, name: str, server: McpServerConfig, context: CheckContext) -> Finding:
    """Check that a client's entry leads to this server."""
    if server.command is not None:
        if shutil.which(server.command) is None:
            return fail(f"{who} starts {server.command}, which does not exist", fix)
        return ok(f"{who} starts Refdesk itself")
    if is_this_desk(server, context.config):
        return ok(f"{who} calls {server.where}")
    if urlsplit(server.where).hostname in ("127.0.0.1", "localhost", "::1"):
        return warn(f"{who} calls {name!r} at {server.where}, but Refdesk is at {context.config.own_url}", fix)
    return ok(f"{who} calls another Refdesk at {server.where}")


# Services


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
    if server.problem:
        return fail(f"{name}: {server.problem}", "Refdesk runs without this server until then")
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
