"""A throw-away copy of what a reader of a page has before them: a folder, a home, a desk, and their shell."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from platformdirs import user_cache_path

from tests.clients.npm import CACHE
from tests.docs import standins
from tests.docs.blocks import ROOT, Block
from tests.docs.checkout import for_packages
from tests.docs.given import SUBSTITUTES
from tests.docs.not_run import OPTIONAL, PACKAGES, PROGRAMS, SCRIPTS
from tests.docs.sites import ADDRESSES
from tests.docs.standins import END_OF_RECORD, STAND_IN
from tests.forked import CLIENT, fork_server
from tests.waiting import PATIENCE_SECONDS, eventually

MARK = "\x1d"

PROLOGUE = f"""\
shopt -u expand_aliases
set -T
trap 'printf "exit status %s: %s{END_OF_RECORD}" "$?" "$BASH_COMMAND" >>"$DESK_FAILED"' ERR
trap 'printf "%s{END_OF_RECORD}" "$BASH_COMMAND" >>"$DESK_RUN"' DEBUG
"""
"""Writes down every command that the shell runs, and every one that fails."""


@dataclass
class Outcome:
    """What became of the commands of a page."""

    printed: list[str]
    errors: str
    run: list[str]
    failed: list[str]
    not_run: list[list[str]]
    referred: list[str]


@dataclass
class Workplace:
    """The folder in which the commands of a page are run."""

    folder: Path
    shared: Path
    site: int = 0
    checkout: Path | None = None
    port: int = 0
    find: Callable[[str], str | None] = shutil.which

    @property
    def home(self) -> Path:
        return self.folder.parent / "home"

    @property
    def here(self) -> Path:
        return self.folder.parent / "machinery"

    def prepare(self) -> None:
        """Make the folder, the home, and what stands in the place of programs."""
        for folder in (self.home, self.here / "stand-in/scripts", self.here / "bin", self.folder / ".venv/bin"):
            folder.mkdir(parents=True)
        (self.here / "client.py").symlink_to(CLIENT)
        (self.here / "attending.py").symlink_to(Path(__file__).with_name("attending.py"))
        for name in [*PROGRAMS, "refdesk", "curl", "python", "python3"]:
            _script(self.here / "stand-in" / name, STAND_IN)
        for name in ("refdesk", "python"):
            self._put(self.folder / ".venv/bin" / name, getattr(standins, name.upper()))
        for name in [*PROGRAMS, "refdesk", "curl", "python", "python3"]:
            self._put(self.here / "bin" / name, self._program(name))
        for name in SCRIPTS:
            _script(self.here / "stand-in/scripts" / name, STAND_IN.replace("$DESK_PREFIX", "scripts/"))
            self._put(self.folder / "scripts" / name, self._script(name))

    def _program(self, name: str) -> str:
        """The text of what is called by a name: the program itself, where it can be had, or its stand-in."""
        if name in standins.clients():
            return standins.CLIENT
        if name == "python3":
            return standins.PYTHON
        if name in ("uv", "uvx") and self.checkout is None:
            return STAND_IN
        if name in OPTIONAL and self.find(name):
            return standins.REAL
        return str(getattr(standins, name.upper(), STAND_IN))

    def _script(self, name: str) -> str:
        """The text of a script of the repository; all but scripts/serve need a fresh checkout, or have a stand-in."""
        if name == "serve":
            return (ROOT / "scripts/serve").read_text("utf-8")
        if self.checkout is not None and SCRIPTS[name] == PACKAGES:
            return standins.SCRIPT
        return f'#!/bin/bash\nexec {self.here}/stand-in/scripts/{name} "$@"\n'

    def _put(self, path: Path, text: str) -> None:
        """A program, with all that its text has places for."""
        names = standins.names() | {
            "here": str(self.here), "python": sys.executable, "folder": str(self.folder), "name": path.name,
            "checkout": str(self.checkout), "root": str(ROOT),
            "program": str(standins.clients().get(path.name) or self.find(path.name)),
            "uv": str(shutil.which("uv") or CACHE / "uv/bin/uv"),
        }  # fmt: skip
        path.parent.mkdir(exist_ok=True)
        for name, value in names.items():
            text = text.replace("{" + name + "}", value)
        _script(path, text)

    def environment(self, **more: str) -> dict[str, str]:
        """What a reader's shell would have, and where the machinery writes."""
        return {
            "PATH": f"{self.here / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "XDG_CACHE_HOME": str(user_cache_path()),  # the manual's index is made once for all
            "XDG_DATA_HOME": str(self.home / "data"),
            "REFDESK__EMBEDDING__WORKERS": "1",  # documents are few, and a worker costs a second to start
            "REFDESK__CONVERT__WORKERS": "1",
            "REFDESK__CONVERT__ALLOW_NETWORKS": "127.0.0.0/8",  # the site that stands for the Internet is there
            "REFDESK_FORKS": str(fork_server()),
            "DESK_SITE": str(self.site),
            "DESK_SYSTEM": str(self.home / "system"),
            "DESK_SHARED": str(self.shared),
            "DESK_REFERRED": str(self.here / "referred"),
            "DESK_RUN": str(self.here / "run"),
            "DESK_FAILED": str(self.here / "failed"),
            "DESK_NOT_RUN": str(self.here / "not-run"),
            **for_packages(),
            **more,
        }

    async def run(self, blocks: Sequence[Block], *, before: str = "", only_check: bool = False) -> Outcome:
        """Run shell and Python blocks one after another in one shell, as a reader who types them in."""
        script = self.here / "page.sh"
        before = self._here(before)
        script.write_text(
            f"{before}\n{PROLOGUE}" + "".join(self._lines_of(number, block) for number, block in enumerate(blocks))
        )
        for name in ("run", "failed", "not-run", "referred"):
            (self.here / name).write_bytes(b"")
        more = {"DESK_ONLY_CHECK": "1", "PATH": f"{self.here / 'bin'}:/usr/bin:/bin"} if only_check else {}
        process = await asyncio.create_subprocess_exec(
            "bash", "--norc", script, cwd=self.folder, env=self.environment(**more), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return self._outcome(out.decode(), err.decode())

    def _lines_of(self, number: int, block: Block) -> str:
        """A block as lines of the script, after a mark that sets its output apart."""
        text = self._here(block.text)
        for theirs, ours in SUBSTITUTES.items():
            text = text.replace(theirs, ours)
        if block.language == "python":
            name = f"block-{number}.py"
            (self.here / name).write_text(text, "utf-8")
            text = f"{sys.executable} -I -S {self.here}/client.py python {self.here}/{name}\n"
        elif block.language == "console":
            text = re.sub(r"^\$ ", "", text, flags=re.MULTILINE)
        return f"printf '{MARK}'\n{text}\n"

    def _here(self, text: str) -> str:
        """With the addresses of this desk and this site."""
        text = text.replace("127.0.0.1:8001", f"127.0.0.1:{self.port}")
        for address in ADDRESSES:
            text = re.sub(re.escape(address) + r"(?!/mcp)", f"http://127.0.0.1:{self.site}", text)
        return text.replace("site/docs.example.com", f"site/127.0.0.1:{self.site}")

    def _outcome(self, out: str, err: str) -> Outcome:
        run, failed, not_run = (self._records(name) for name in ("run", "failed", "not-run"))
        for failure in failed:
            run.remove(failure.partition(": ")[2])  # the shell tells of it twice
        return Outcome(
            printed=out.split(MARK)[1:],
            errors=err,
            run=[command for command in run if MARK not in command],
            failed=failed,
            not_run=[record.strip("\0").split("\0") for record in not_run],
            referred=self._records("referred"),
        )

    def _records(self, name: str) -> list[str]:
        return [record for record in (self.here / name).read_text("utf-8").split(END_OF_RECORD) if record]

    @asynccontextmanager
    async def desk(self, **settings: str) -> AsyncIterator[None]:
        """A desk of the reader's own, as `scripts/serve` starts one; its port takes the place of 8001."""
        client = [sys.executable, "-I", "-S", str(self.here / "client.py"), "refdesk", "serve", "--port", "0"]
        log = (self.folder / "refdesk.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            *client, cwd=self.folder, env=self.environment(REFDESK__LOGGING__FORMAT="json", **settings), stderr=log
        )
        try:
            self.port = await self._ready(process)
            await eventually(lambda: self._has_manual(settings.get("MCP_API_KEY", "")))
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()
            log.close()

    async def _has_manual(self, key: str) -> bool:
        """Whether the desk's manual is indexed and embedded. Results are ranked differently until then.

        Metrics aren't rate limited: a page's desk may limit calls, and polling would use up what its commands need.
        """
        url, headers = f"http://127.0.0.1:{self.port}", {"X-API-Key": key}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_SECONDS) as http:
            metrics = (await http.get("/metrics")).raise_for_status().text
            waiting = re.findall(r"^refdesk_queue_documents{.*} (.*)$", metrics, re.MULTILINE)
            if not waiting or any(map(float, waiting)):
                return False
            response = await http.post("/api/console/documents", json={"collection": "refdesk", "limit": 1})
        return response.status_code != 429 and bool(response.raise_for_status().json()["total"])

    async def _ready(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the line that says so; its port."""
        ports: list[int] = []

        def is_ready() -> bool:
            written = (self.folder / "refdesk.log").read_text("utf-8")
            ready = re.findall(r'^\{.*"event":"ready".*\}$', written, re.MULTILINE)
            ports.extend(int(re.findall(r":(\d+)/mcp", json.loads(line)["endpoint"])[0]) for line in ready)
            assert ports or process.returncode is None, f"the desk has ended: {written}"
            return bool(ports)

        await eventually(is_ready)
        return ports[0]


def _script(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o755)
