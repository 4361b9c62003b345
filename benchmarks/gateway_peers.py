"""The gateways that are measured: where each is had from, how it is started, and how it is called.

Peers live in environments of their own under `.cache`, made on first use: they need other packages than we do.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from report import ROOT

HERE = Path(__file__).resolve().parent
FOLDER = ROOT / ".cache" / "bench-gateways"
INSTALL_SECONDS = 900
REGISTER_SECONDS = 60.0

USE_ONCE = """
import asyncio, sys, refdesk
from refdesk.config.loading import load

async def use():
    async with refdesk.open(load(None, {}, {"data_dir": sys.argv[1]})) as desk:
        await asyncio.sleep(1)
        while any((await desk.engine.waiting()).values()):
            await asyncio.sleep(0.2)

asyncio.run(use())
"""
"""Ends when all that is to be indexed is."""

Kind = Literal["stdio", "http"]


class CannotInstall(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True)
class Behind:
    """A server behind a gateway."""

    name: str
    command: Sequence[str] = ()
    url: str = ""

    def entry(self) -> dict[str, Any]:
        """Its entry in `mcpServers`."""
        if self.url:
            return {"url": self.url, "type": "http"}
        return {"command": self.command[0], "args": list(self.command[1:])}


def written(behind: Sequence[Behind], path: Path) -> Path:
    """A file with `mcpServers`."""
    path.write_text(json.dumps({"mcpServers": {one.name: one.entry() for one in behind}}), "utf-8")
    return path


@dataclass
class Gateway:
    """One gateway: how it is installed, started, called."""

    name: str
    what: str
    kinds: frozenset[Kind] = frozenset({"stdio", "http"})
    aggregates: bool = True
    """Whether several servers are behind one endpoint of it."""
    path: str = "/mcp"
    inbound: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def install(self) -> None:
        """Have it here, or raise CannotInstall."""

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def register(self, behind: Sequence[Behind], port: int, folder: Path) -> list[subprocess.Popen[bytes]]:
        """What is left to do once it listens; answers what was started besides."""
        return []


class Refdesk(Gateway):
    """This product, as `refdesk serve` runs it: sessions, every policy, the embedded engine.

    Its data folder has been used before, so that it does not index its manual while it is measured.
    """

    def install(self) -> None:
        used = FOLDER / "refdesk-data"
        shutil.rmtree(used, ignore_errors=True)
        _run(sys.executable, "-c", USE_ONCE, str(used))

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        config = written(behind, folder / "refdesk.yaml")
        shutil.copytree(FOLDER / "refdesk-data", folder / "data", dirs_exist_ok=True)
        return [sys.executable, "-m", "refdesk", "serve", "--port", str(port), "--data", str(folder / "data"),
                "--config", str(config)]  # fmt: skip


class BareRelay(Gateway):
    """The floor."""

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        script = HERE / "servers" / "bare_relay.py"
        return [sys.executable, str(script), str(written(behind, folder / "relay.json")), str(port)]


class OfPython(Gateway):
    """A peer with an environment of its own."""

    packages: tuple[str, ...] = ()

    @property
    def bin(self) -> Path:
        return FOLDER / self.name / "bin"

    def install(self) -> None:
        if (FOLDER / self.name / "ready").exists():
            return
        uv = shutil.which("uv")
        if uv is None:
            raise CannotInstall("uv is not on the PATH")
        _run(uv, "venv", "--clear", "--python", sys.executable, str(FOLDER / self.name))
        _run(uv, "pip", "install", "--python", str(self.bin / "python"), *self.packages)
        (FOLDER / self.name / "ready").touch()


class FastMcp(OfPython):
    packages = ("fastmcp==4.1.2", "uvloop", "httptools")

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        script = HERE / "servers" / "fastmcp_proxy.py"
        return [str(self.bin / "python"), str(script), str(written(behind, folder / "fastmcp.json")), str(port)]


class McpProxy(OfPython):
    packages = ("mcp-proxy==0.13.0",)

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        return [str(self.bin / "mcp-proxy"), "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING",
                "--named-server-config", str(written(behind, folder / "mcp-proxy.json"))]  # fmt: skip


class LiteLlm(OfPython):
    packages = ("litellm[proxy]==1.108.4",)

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        servers = {one.name: {"transport": "http" if one.url else "stdio", "allow_all_keys": True, **one.entry()}
                   for one in behind}  # fmt: skip
        for entry in servers.values():
            entry.pop("type", None)
        config = folder / "litellm.yaml"
        settings = {"model_list": [], "general_settings": {"master_key": LITELLM_KEY}, "mcp_servers": servers}
        config.write_text(json.dumps(settings), "utf-8")
        return [str(self.bin / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port),
                "--telemetry", "False"]  # fmt: skip


class ContextForge(OfPython):
    packages = ("mcp-contextforge-gateway",)

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/contextforge-{port}.db"
        return [str(self.bin / "mcpgateway"), "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]

    def register(self, behind: Sequence[Behind], port: int, folder: Path) -> list[subprocess.Popen[bytes]]:
        """Servers on standard input and output get the bridge that comes with it."""
        bridges: list[subprocess.Popen[bytes]] = []
        headers = {"authorization": f"Bearer {self._token()}"}
        self.headers = headers
        for number, one in enumerate(behind):
            url = one.url
            if not url:
                bridge_port = port + 1 + number
                url = f"http://127.0.0.1:{bridge_port}/mcp"
                bridges.append(subprocess.Popen(
                    [str(self.bin / "python"), "-m", "mcpgateway.translate", "--stdio", shlex.join(one.command),
                     "--expose-streamable-http", "--port", str(bridge_port), "--host", "127.0.0.1", "--logLevel",
                     "error"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                ))  # fmt: skip
            entry = {"name": one.name, "url": url, "transport": "STREAMABLEHTTP", "description": one.name}
            _post_until(f"http://127.0.0.1:{port}/gateways", headers, entry)
        return bridges

    def _token(self) -> str:
        done = subprocess.run(
            [str(self.bin / "python"), "-m", "mcpgateway.utils.create_jwt_token", "--username", "admin@example.com",
             "--admin", "--exp", "10080", "--secret", self.environment["JWT_SECRET_KEY"]],
            env={**os.environ, **self.environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip().splitlines()[-1]


class OfNode(Gateway):
    """A peer of npm."""

    package = ""

    @property
    def bin(self) -> Path:
        return FOLDER / self.name / "node_modules" / ".bin"

    def install(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotInstall("npm is not on the PATH")
        if not (FOLDER / self.name / "ready").exists():
            (FOLDER / self.name).mkdir(parents=True, exist_ok=True)
            _run(npm, "install", "--prefix", str(FOLDER / self.name), "--no-fund", "--no-audit", self.package)
            (FOLDER / self.name / "ready").touch()


class Supergateway(OfNode):
    package = "supergateway@4.0.0"

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        return [str(self.bin / "supergateway"), "--stdio", shlex.join(behind[0].command), "--outputTransport",
                "streamableHttp", "--stateful", "--port", str(port), "--logLevel", "none"]  # fmt: skip


class McpHub(OfNode):
    package = "mcp-hub@4.2.1"

    def command(self, behind: Sequence[Behind], port: int, folder: Path) -> list[str]:
        config = folder / "hub.json"
        entries = {one.name: {**one.entry()} for one in behind}
        for entry in entries.values():
            entry.pop("type", None)
        config.write_text(json.dumps({"mcpServers": entries}), "utf-8")
        return [str(self.bin / "mcp-hub"), "--port", str(port), "--config", str(config)]


LITELLM_KEY = f"sk-{secrets.token_hex(16)}"
_PASSWORD = f"Bench-{secrets.token_hex(8)}!"
_FORGE = {
    "JWT_SECRET_KEY": secrets.token_urlsafe(48),
    "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
    "BASIC_AUTH_PASSWORD": _PASSWORD,
    "PLATFORM_ADMIN_EMAIL": "admin@example.com",
    "PLATFORM_ADMIN_PASSWORD": _PASSWORD,
    "DEFAULT_USER_PASSWORD": _PASSWORD,
    "SSRF_PROTECTION_ENABLED": "false",
    "SSRF_ALLOW_LOCALHOST": "true",
    "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "RATE_LIMITING_ENABLED": "false",
    "CACHE_TYPE": "memory",
    "LOG_LEVEL": "ERROR",
    "MCPGATEWAY_UI_ENABLED": "false",
    "PLUGINS_ENABLED": "false",
    "TOOL_RATE_LIMIT": "1000000",
    "SECURE_COOKIES": "false",
    "ENVIRONMENT": "development",
}
_ONLY_STDIO: frozenset[Kind] = frozenset({"stdio"})

REFDESK, RELAY = "refdesk", "relay"
GATEWAYS: tuple[Gateway, ...] = (
    BareRelay(RELAY, "bare relay, no policy", aggregates=False),
    Refdesk(REFDESK, "Refdesk"),
    McpHub("mcp-hub", "mcp-hub 4.2.1", inbound="sse"),
    McpProxy("mcp-proxy", "mcp-proxy 0.13.0", kinds=_ONLY_STDIO, aggregates=False, path="/servers/one/mcp"),
    Supergateway("supergateway", "supergateway 4.0.0", kinds=_ONLY_STDIO, aggregates=False),
    FastMcp("fastmcp", "FastMCP 4.1.2 proxy", environment={"FASTMCP_CHECK_FOR_UPDATES": "off"}),
    LiteLlm("litellm", "LiteLLM 1.108.4", path="/mcp/", headers={"x-litellm-api-key": f"Bearer {LITELLM_KEY}"},
            environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR",
                         "LITELLM_MASTER_KEY": LITELLM_KEY, "LITELLM_ENABLE_MCP_STDIO": "true"}),
    ContextForge("contextforge", "ContextForge", path="/mcp/", environment=_FORGE),
)  # fmt: skip


def _run(*command: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"not installed within {INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise CannotInstall((error.stderr.strip() or "failed").splitlines()[-1]) from None


def _post_until(url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
    """Post, again and again while the other side is not ready."""
    until = time.monotonic() + REGISTER_SECONDS
    while True:
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"content-type": "application/json", **headers}
        )
        try:
            urllib.request.urlopen(request, timeout=REGISTER_SECONDS).close()
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > until:
                raise CannotInstall(f"a server could not be registered: {error}") from None
            time.sleep(0.5)
        else:
            return
