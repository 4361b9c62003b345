"""A throw-away copy of what a reader of a page has before them: a folder, a home, a desk, and their shell."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from tests.docs.blocks import ROOT, Block
from tests.docs.forking import CLIENT
from tests.docs.given import SUBSTITUTES
from tests.docs.not_run import PROGRAMS, SCRIPTS

SECONDS = 100.0
"""How long the commands of a page may take together: one that hangs is to fail here, not in pytest's own bound."""

END_OF_RECORD = "\x1e"
MARK = "\x1d"

PROLOGUE = f"""\
shopt -u expand_aliases
set -T
trap 'printf "exit status %s: %s{END_OF_RECORD}" "$?" "$BASH_COMMAND" >>"$DESK_FAILED"' ERR
trap 'printf "%s{END_OF_RECORD}" "$BASH_COMMAND" >>"$DESK_RUN"' DEBUG
"""
"""Writes down every command that the shell runs, and every one that fails."""

STAND_IN = f"""\
#!/bin/bash
{{ printf '%s\\0' "$DESK_PREFIX$(basename "$0")" "$@"; printf '{END_OF_RECORD}'; }} >>"$DESK_NOT_RUN"
"""
"""In the place of a program that cannot be run here: writes down how it was called, and succeeds."""

REFDESK = """\
#!/bin/bash
stand_in() { {here}/stand-in/refdesk "$@"; exit; }
[ -n "$DESK_ONLY_CHECK" ] && stand_in "$@"
[ "$1" = serve ] && stand_in "$@"
case "$1 $* " in
  *" --yes "*|*" --dry-run "*) ;;
  "install "*|"uninstall "*) set -- "$@" --yes ;;  # a reader says yes; nobody is here to be asked
esac
for word in "$@"; do
  case "$1 $word" in
    *" --watch") stand_in "$@" ;;
    *http://127.0.0.1*|*http://localhost*) ;;
    add*http://*|add*https://*|read*https://*|convert*https://*|convert*http://*) stand_in "$@" ;;
  esac
done
exec {python} -I -S {here}/client.py refdesk "$@"
"""

PYTHON = """\
#!/bin/bash
case "$1" in benchmarks/*|-m) exec {here}/stand-in/python "$@" ;; esac
exec {python} "$@"
"""

CURL = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/curl "$@"
for word in "$@"; do
  case "$word" in
    http://127.0.0.1*|http://localhost*|\\'http*) ;;
    http://*|https://*) exec {here}/stand-in/curl "$@" ;;
  esac
done
exec {curl} --max-time 30 "$@"
"""


@dataclass
class Outcome:
    """What became of the commands of a page."""

    printed: list[str]
    errors: str
    run: list[str]
    failed: list[str]
    not_run: list[list[str]]


@dataclass
class Workplace:
    """The folder in which the commands of a page are run."""

    folder: Path
    forks: Path
    port: int = 0

    @property
    def home(self) -> Path:
        return self.folder.parent / "home"

    @property
    def here(self) -> Path:
        return self.folder.parent / "machinery"

    def prepare(self) -> None:
        """Make the folder, the home, and what stands in the place of programs."""
        for folder in (self.home, self.here / "stand-in", self.here / "bin", self.folder / ".venv/bin"):
            folder.mkdir(parents=True)
        (self.here / "client.py").write_text(CLIENT, "utf-8")
        for name in [*PROGRAMS, "refdesk", "curl", "python"]:
            _script(self.here / "stand-in" / name, STAND_IN)
        names = {"here": str(self.here), "python": sys.executable, "curl": shutil.which("curl") or "curl"}
        self._put("refdesk", REFDESK, names)
        self._put("python", PYTHON, names)
        _script(self.here / "bin/curl", _filled(CURL, names))
        for name in PROGRAMS:
            (self.here / "bin" / name).symlink_to(self.here / "stand-in" / name)
        (self.folder / "scripts").mkdir()
        for name in SCRIPTS:
            _script(self.folder / "scripts" / name, STAND_IN.replace("$DESK_PREFIX", "scripts/"))

    def _put(self, name: str, text: str, names: dict[str, str]) -> None:
        """A program that is there by its name and as `.venv/bin/NAME`."""
        for path in (self.here / "bin" / name, self.folder / ".venv/bin" / name):
            _script(path, _filled(text, names))

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
            "REFDESK_FORKS": str(self.forks),
            "DESK_RUN": str(self.here / "run"),
            "DESK_FAILED": str(self.here / "failed"),
            "DESK_NOT_RUN": str(self.here / "not-run"),
            **more,
        }

    async def run(self, blocks: Sequence[Block], *, before: str = "", only_check: bool = False) -> Outcome:
        """Run shell and Python blocks one after another in one shell, as a reader who types them in."""
        script = self.here / "page.sh"
        before = before.replace("127.0.0.1:8001", f"127.0.0.1:{self.port}")
        script.write_text(
            f"{before}\n{PROLOGUE}" + "".join(self._lines_of(number, block) for number, block in enumerate(blocks))
        )
        for name in ("run", "failed", "not-run"):
            (self.here / name).write_bytes(b"")
        more = {"DESK_ONLY_CHECK": "1", "PATH": f"{self.here / 'bin'}:/usr/bin:/bin"} if only_check else {}
        process = await asyncio.create_subprocess_exec(
            "bash", "--norc", script, cwd=self.folder, env=self.environment(**more), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return self._outcome(out.decode(), err.decode())

    def _lines_of(self, number: int, block: Block) -> str:
        """A block as lines of the script, after a mark that sets its output apart."""
        text = block.text.replace("127.0.0.1:8001", f"127.0.0.1:{self.port}")
        for theirs, ours in SUBSTITUTES.items():
            text = text.replace(theirs, ours)
        if block.language == "python":
            name = f"block-{number}.py"
            (self.here / name).write_text(text, "utf-8")
            text = f"{sys.executable} -I -S {self.here}/client.py python {self.here}/{name}\n"
        elif block.language == "console":
            text = re.sub(r"^\$ ", "", text, flags=re.MULTILINE)
        return f"printf '{MARK}'\n{text}\n"

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
        pid = None
        try:
            self.port, pid = await self._ready(process)
            yield
        finally:
            if pid is not None:
                os.kill(pid, signal.SIGTERM)
            async with asyncio.timeout(30):
                await process.wait()
            log.close()

    async def _ready(self, process: asyncio.subprocess.Process) -> tuple[int, int]:
        """Wait for the line that says so; its port and process."""
        async with asyncio.timeout(30):
            while True:
                written = (self.folder / "refdesk.log").read_text("utf-8")
                for line in re.findall(r'^\{.*"event":"ready".*\}$', written, re.MULTILINE):
                    entry = json.loads(line)
                    return int(re.findall(r":(\d+)/mcp", entry["endpoint"])[0]), int(entry["pid"])
                assert process.returncode is None, f"the desk has ended: {written}"
                await asyncio.sleep(0.05)


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


def _script(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o755)


@asynccontextmanager
async def forks(folder: Path) -> AsyncIterator[Path]:
    """The process whose forks run the commands, on a socket."""
    path = folder / "forks"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.docs.forking", str(path), cwd=ROOT)
    try:
        async with asyncio.timeout(60):
            while not path.exists():
                assert process.returncode is None, "it has ended"
                await asyncio.sleep(0.05)
        yield path
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
