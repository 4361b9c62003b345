"""Files that say which servers there are, followed while the desk runs: real files, pauses that tests end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from refdesk.config.loading import load
from refdesk.config.models import Config
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.server_log import ServerLog, read_last_lines
from refdesk.downstream.files.servers_file import (
    MAX_SETTLE_CHECKS,
    ServerFilesWatcher,
    ServersFile,
    list_server_files,
    load_servers,
)
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.errors import ConfigError, StorageError
from refdesk.telemetry.log import iter_secrets
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

SECRET = "hunter2hunter2"
ROOT = Path(__file__).parents[3]


class Pauses:
    """Pauses between looks at the files: they end while a test waits for something, and only then.

    So nothing is looked at while a test writes.
    """

    def __init__(self) -> None:
        self._is_waited_for = asyncio.Event()
        self._has_begun = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """One of them, as `ServerFilesWatcher` makes it."""
        self._has_begun.set()
        await self._is_waited_for.wait()
        self._has_begun.clear()
        await checkpoint()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what comes of looking, and then for the next pause."""
        self._is_waited_for.set()
        await eventually(is_so)
        self._is_waited_for.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._has_begun.wait()


def has_more(records: list[logging.LogRecord], than: int) -> bool:
    return len(records) > than


class Desk:
    """What is applied, and a way to wait for it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.file = ServersFile(config.servers_path)
        self.applied: list[list[str]] = []
        self.loads = 0
        self.pauses = Pauses()
        self.until = self.pauses.until

    def load(self) -> Mapping[str, McpServerConfig]:
        try:
            return load_servers(self.config, {"SET": "x"}).servers
        finally:
            self.loads += 1

    async def apply(self, servers: Mapping[str, McpServerConfig]) -> None:
        self.applied.append(list(servers))

    async def wait_for_look(self) -> None:
        """Until changes up to now have been read."""
        before = self.loads
        stamp = self.config.servers_path.stat()
        os.utime(self.config.servers_path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
        await self.until(lambda: self.loads > before)


@asynccontextmanager
async def watch_files(tmp_path: Path, yaml: str) -> AsyncIterator[Desk]:
    path = tmp_path / "refdesk.yaml"
    path.write_text(yaml)
    desk = Desk(load(path, {"SET": "x"}, {"data_dir": str(tmp_path / "data")}))
    desk.file.add({"kept": {"command": "x"}})
    known = desk.load()
    watching = asyncio.create_task(
        ServerFilesWatcher(list_server_files(desk.config), desk.load, desk.apply, known).follow(desk.pauses.sleep)
    )
    try:
        yield desk
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        assert watching.cancelled()


async def test_a_change_of_either_file_is_applied(tmp_path: Path) -> None:
    async with watch_files(tmp_path, "mcpServers: {a: {command: x}}\n") as desk:
        desk.file.add({"new": {"command": "x"}})
        await desk.until(lambda: desk.applied == [["a", "kept", "new"]])
        (tmp_path / "refdesk.yaml").write_text("mcpServers: {b: {command: '${SET}'}}\n")
        await desk.until(lambda: desk.applied[-1] == ["b", "kept", "new"])
        desk.file.enable("new", on=False)
        await desk.until(lambda: len(desk.applied) == 3)
        desk.file.remove("new")
        await desk.until(lambda: desk.applied[-1] == ["b", "kept"])


async def test_what_says_the_same_in_other_words_is_not_applied(tmp_path: Path) -> None:
    async with watch_files(tmp_path, "mcpServers: {a: {command: x}}\nproject: p\n") as desk:
        (tmp_path / "refdesk.yaml").write_text("# the same\nproject: q\nmcpServers:\n  a: {command: x}\n")
        await desk.wait_for_look()
        await desk.wait_for_look()
        assert desk.applied == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("mcpServers: {a: {comand: x}}\n", "refdesk.yaml: mcpServers.a.comand: unknown key; did you mean command?"),
        ("mcpServers: {a: {command", "not valid YAML"),
        ("", "refdesk.yaml: is empty"),
        (f"mcpServers: {{a: {{command: x, env: {{K: [{SECRET}]}}}}}}\n", "mcpServers.a.env.K: ******** is not text"),
        ("mcpServers: {a: 1, b: 2, c: 3}\n", "mcpServers.a: expected a mapping, not a number (and 2 more)"),
    ],
)
async def test_a_broken_file_changes_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str, words: str
) -> None:
    async with watch_files(tmp_path, "mcpServers: {a: {command: x}}\n") as desk:
        (tmp_path / "refdesk.yaml").write_text(broken)
        await desk.until(lambda: bool(caplog.records))
        for _ in range(3):
            await desk.wait_for_look()
        (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        fields: dict[str, str] = told.__dict__["fields"]
        assert words in fields["problem"]
        assert SECRET not in fields["problem"]
        assert fields["problem"].count("\n") == 0
        assert desk.applied == []
        (tmp_path / "refdesk.yaml").write_text("mcpServers: {a: {command: y}}\n")
        await desk.until(lambda: desk.applied == [["a", "kept"]])
        assert [record.message for record in caplog.records][1:] == ["downstream.config_mended"]


async def test_a_broken_file_of_the_desk_changes_nothing_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watch_files(tmp_path, "mcpServers: {a: {command: x}}\n") as desk:
        for text in ("", "{", '{"mcpServers": {"kept": {"command": 5}}}'):
            desk.file.path.write_text(text)
            await desk.until(partial(has_more, caplog.records, len(caplog.records)))
            assert "servers.json" in caplog.records[-1].__dict__["fields"]["problem"]
        assert desk.applied == []
        desk.file.path.unlink()
        await desk.until(lambda: desk.applied == [["a"]])


async def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = json.dumps({"mcpServers": {f"s{n}": {"command": "x"} for n in range(50)}})
    path, states = tmp_path / "servers.json", [whole[:length] for length in range(10, len(whole), 100)]
    assert len(states) < MAX_SETTLE_CHECKS
    path.write_text(states.pop(0))
    states.append(whole)
    applied: list[list[str]] = []

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        applied.append(list(servers))

    async def write_more(seconds: float) -> None:
        # Each look finds it longer than the one before.
        if states:
            path.write_text(states.pop(0))
        await checkpoint()

    followed = ServerFilesWatcher([path], lambda: ServersFile(path).read({}).servers, apply, {})
    watching = asyncio.create_task(followed.follow(write_more))
    await eventually(lambda: applied)
    watching.cancel()
    await asyncio.wait([watching])
    assert [len(servers) for servers in applied] == [50]
    assert caplog.records == []


async def test_without_anything_known_what_the_files_say_is_applied_at_once(tmp_path: Path) -> None:
    applied = asyncio.Event()

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        assert list(servers) == ["a"]
        applied.set()

    servers = {"a": McpServerConfig(command="x")}
    watching = asyncio.create_task(ServerFilesWatcher([tmp_path / "none"], lambda: servers, apply).follow())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await applied.wait()
    watching.cancel()
    await asyncio.wait([watching])


async def test_a_change_between_reading_and_watching_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text("mcpServers: {a: {command: x}}\n")
    desk = Desk(load(path, {}, {"data_dir": str(tmp_path / "data")}))
    known = desk.load()
    path.write_text("mcpServers: {b: {command: x}}\n")
    watching = asyncio.create_task(ServerFilesWatcher([path], desk.load, desk.apply, known).follow(desk.pauses.sleep))
    await desk.until(lambda: desk.applied == [["b"]])
    watching.cancel()
    await asyncio.wait([watching])


async def test_of_two_who_take_in_at_once_the_one_that_looked_last_is_used_last(tmp_path: Path) -> None:
    names, looked, may_go_on, applied = ["old", "new"], Event(), Event(), []

    def load() -> Mapping[str, McpServerConfig]:
        found = {names.pop(0): McpServerConfig(command="x")}
        looked.set()
        may_go_on.wait(PATIENCE_SECONDS)
        return found

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        applied.append(list(servers))

    followed = ServerFilesWatcher([tmp_path / "none"], load, apply, {})
    first = asyncio.create_task(followed.reload_servers())
    await asyncio.to_thread(looked.wait, PATIENCE_SECONDS)
    second = asyncio.create_task(followed.reload_servers())
    await wait_all_tasks_blocked()
    assert names == ["new"], "the second looks before the first is done"
    may_go_on.set()
    await asyncio.gather(first, second)
    assert applied == [["old"], ["new"]]


async def test_the_first_reading_may_fail_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Mapping[str, McpServerConfig]:
        raise ConfigError(["x: y: z"])

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        raise AssertionError(servers)

    watching = asyncio.create_task(ServerFilesWatcher([tmp_path / "none"], fail, apply).follow())
    await eventually(lambda: bool(caplog.records))
    watching.cancel()
    await asyncio.wait([watching])
    assert [record.__dict__["fields"]["problem"] for record in caplog.records] == ["x: y: z"]


async def test_what_could_not_be_applied_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, tries = tmp_path / "servers.json", 0

    async def apply(servers: Mapping[str, McpServerConfig]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StorageError("the disk is full")

    def now() -> Mapping[str, McpServerConfig]:
        return ServersFile(path).read({}).servers

    pauses = Pauses()
    watching = asyncio.create_task(ServerFilesWatcher([path], now, apply, {}).follow(pauses.sleep))
    ServersFile(path).add({"a": {"command": "x"}})
    await pauses.until(lambda: tries == 1)
    ServersFile(path).add({"b": {"command": "x"}})
    await pauses.until(lambda: tries == 2)
    watching.cancel()
    await asyncio.wait([watching])
    assert [record.__dict__["fields"]["problem"] for record in caplog.records] == ["the disk is full"]


async def test_a_server_that_is_added_while_the_desk_runs_is_there_soon_and_gone_when_removed(tmp_path: Path) -> None:
    """By a real fleet, whose servers' error output is kept in their files."""
    config = load(None, {}, {"data_dir": str(tmp_path / "data")})
    file, folder = ServersFile(config.servers_path), tmp_path / "data" / "downstream"

    def connect(name: str, settings: McpServerConfig, **more: Any) -> Connection:
        return Connection(name, settings, on_stderr_line=ServerLog(folder, name, iter_secrets(settings)), **more)

    def now() -> Mapping[str, McpServerConfig]:
        return load_servers(config, {}).servers

    program = f"import sys, runpy; print('up with {SECRET}', file=sys.stderr); sys.argv[1:] = ['stdio']; "
    program += "runpy.run_module('tests.downstream.servers.talkative', run_name='__main__')"
    entry = {"command": sys.executable, "args": ["-c", program], "cwd": str(ROOT), "env": {"A_KEY": SECRET}}
    async with Fleet(config.downstream, folder, connect=connect).run(now()) as fleet:
        followed, pauses = ServerFilesWatcher(list_server_files(config), now, fleet.apply, now()), Pauses()
        until = pauses.until
        watching = asyncio.create_task(followed.follow(pauses.sleep))
        file.add({"talkative": entry})
        await until(lambda: "talkative__echo" in fleet.catalogue.tools)
        pid = fleet.describe()["talkative"]["pid"]
        await until(lambda: bool(read_last_lines(folder, "talkative", 1)))
        assert read_last_lines(folder, "talkative", 1)[0].endswith("up with ********")
        file.enable("talkative", on=False)
        await until(lambda: not fleet.catalogue.tools and not Path(f"/proc/{pid}").exists())
        file.enable("talkative")
        await until(lambda: "talkative__echo" in fleet.catalogue.tools)
        file.remove("talkative")
        await until(lambda: not fleet.catalogue.tools and not fleet.servers)
        watching.cancel()
        await asyncio.wait([watching])
