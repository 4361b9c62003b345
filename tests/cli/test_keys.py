"""`refdesk keys`: what it keeps, what it says, and that a running server follows."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from refdesk.calls import Caller
from refdesk.cli import main
from refdesk.policy.keys import KeyFile, Keys, digest
from tests.processes import started_process
from tests.waiting import PATIENCE_SECONDS, eventually

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command with `--json`; answers what it printed, or what it said when it failed."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, code: int = 0) -> Any:
        ended = main(["keys", *arguments, "--data", str(tmp_path / "data"), "--json"])
        told = capsys.readouterr()
        assert ended == code, told.err
        return told.err if code else json.loads(told.out)

    return command


def caller(tmp_path: Path, key: str) -> Caller | None:
    return Keys((), KeyFile(tmp_path / "data" / "keys.json")).find(digest(key))


def test_a_key_is_made_listed_and_revoked(run: Run, tmp_path: Path) -> None:
    made = run("make", "ci", "--tenant", "acme", "--role", "reader", "--toolset", "docs,Reader", "--expires", "90d")
    found = caller(tmp_path, made["key"])
    assert found is not None
    assert (found.user, found.tenant) == ("ci", "acme")
    assert found.roles == {"reader"}
    assert found.toolsets == frozenset({"docs", "reader"})
    expires = datetime.fromisoformat(made["expires"])
    assert timedelta(days=89) < expires - datetime.now(UTC) <= timedelta(days=90)
    (listed,) = run("list")
    assert listed["name"] == "ci"
    assert "key" not in listed
    assert "sha256" not in listed
    assert listed["expired"] is False
    assert run("revoke", "ci") == {"revoked": "ci"}
    assert caller(tmp_path, made["key"]) is None
    assert run() == []


def test_without_options_a_key_opens_all_for_a_user_of_its_name(run: Run, tmp_path: Path) -> None:
    found = caller(tmp_path, run("make", "laptop")["key"])
    assert found is not None
    assert (found.user, found.tenant, found.roles, found.toolsets) == ("laptop", "default", frozenset(), None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("make",), "Missing argument 'NAME'."),
        (("make", " "), "Missing argument 'NAME'."),
        (("make", "a\x1b[2J"), "NAME: must be"),
        (("make", "x" * 256), "NAME: must be"),
        (("make", "taken"), "there is a key named 'taken' already"),
        (("make", "a", "--role", "raeder"), "did you mean 'reader'?"),
        (("make", "a", "--role", "boss"), "known are reader, writer, service, admin"),
        (("make", "a", "--toolset", "dogs"), "did you mean 'docs'?"),
        (("make", "a", "--expires", "soon"), "neither a length such as 90d"),
        (("make", "a", "--expires", "0d"), "has passed"),
        (("make", "a", "--expires", "2020-01-01"), "has passed"),
        (("make", "a", "--expires", "999999w"), "neither a length"),
        (("revoke",), "Missing argument 'NAME'."),
        (("revoke", "takn"), "did you mean 'taken'?"),
        (("list", "taken"), "only `make` and `revoke` take a name"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Run, arguments: tuple[str, ...], said: str) -> None:
    run("make", "taken")
    told = run(*arguments, code=1 if "taken'" in said else 2)
    problem, _, hint = told.partition("\n")
    assert said in problem
    assert hint in ("", "hint: see `refdesk keys --help`\n")
    assert [entry["name"] for entry in run("list")] == ["taken"]


def test_a_day_is_a_time_too(run: Run) -> None:
    day = f"{datetime.now().year + 2}-01-31"
    made = run("make", "a", "--expires", day)
    assert datetime.fromisoformat(made["expires"]).astimezone().date().isoformat() == day


def test_the_first_key_can_be_made_where_one_is_required(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_AUTH_REQUIRED", "true")
    monkeypatch.setenv("REFDESK__SERVER__HOST", "0.0.0.0")
    assert run("make", "first")["name"] == "first"


def test_keys_of_the_configuration_are_listed_and_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refdesk.yaml").write_text(
        "auth:\n  keys:\n    - {name: ops, key: the-secret-of-ops, roles: [admin]}\n"
    )
    (listed,) = run("list")
    assert (listed["name"], listed["source"], listed["roles"]) == ("ops", "configuration", ["admin"])
    assert "the-secret-of-ops" not in json.dumps(listed)
    assert "remove it from the configuration" in run("revoke", "ops", code=1)
    assert "choose another name" in run("make", "ops", code=1)


def test_people_are_shown_a_table_and_the_key_alone_on_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "make", "ci", "--data", "data", "--role", "reader"]) == 0
    made = capsys.readouterr()
    key = made.out.strip()
    assert caller(tmp_path, key) is not None
    assert "shown only once" in made.err
    assert key not in made.err
    assert main(["keys", "--data", "data"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == "NAME TENANT USER ROLES TOOLSETS SERVERS CREATED EXPIRES SOURCE".split()
    assert table.splitlines()[1].split()[:6] == ["ci", "default", "ci", "reader", "all", "all"]
    assert main(["keys", "revoke", "ci", "--data", "data"]) == 0
    assert capsys.readouterr().out == "Revoked key 'ci'.\n"


def test_a_key_can_be_limited_to_servers_behind_the_desk(run: Run, tmp_path: Path) -> None:
    made = run("make", "ci", "--server", "github", "--server", "jira__get_*", "--server", "github")
    assert made["servers"] == ["github", "jira__get_*"]
    found = caller(tmp_path, made["key"])
    assert found is not None
    assert found.servers == frozenset({"github", "jira__get_*"})
    assert [entry["servers"] for entry in run()] == [["github", "jira__get_*"]]


def test_a_broken_file_is_named_and_not_written_over(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "data" / "keys.json"
    file.parent.mkdir()
    file.write_text("{")
    for arguments in (("make", "a"), ("revoke", "a"), ("list",)):
        assert f"{file}: is invalid" in run(*arguments, code=2)
    assert file.read_text() == "{"


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_running_server_takes_a_key_and_drops_it_without_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes that serve, and a third that makes the key."""
    folder, file = tmp_path / "data", KeyFile(tmp_path / "data" / "keys.json")
    assert main(["keys", "make", "first", "--data", str(folder)]) == 0
    key = capsys.readouterr().out.strip()
    async with (
        started_process(tmp_path, "--workers", "2", MCP_AUTH_REQUIRED="true") as server,
        httpx2.AsyncClient(base_url=server.url, verify=False, timeout=PATIENCE_SECONDS) as http,
    ):
        headers = {"x-api-key": key, "connection": "close"}

        async def statuses() -> set[int]:
            """Over connections of their own, so that both processes are asked."""
            return {(await http.get("/api/tools", headers=headers)).status_code for _ in range(12)}

        async def has_statuses(wanted: set[int]) -> bool:
            return await statuses() == wanted

        assert await statuses() == {200}
        first = file.remove("first")
        await eventually(lambda: has_statuses({401}))
        file.add(first)
        await eventually(lambda: has_statuses({200}))
        await server.stop()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_only_what_lets_others_in_needs_the_first_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_AUTH_REQUIRED", "true")
    (tmp_path / "notes.md").write_text("# Notes\n\nA fox.\n")
    assert main(["convert", "notes.md", "--data", "data"]) == 0
    assert "A fox." in capsys.readouterr().out
    for command in ("check", "serve"):
        assert main([command, "--data", "data"]) == 2
        assert "no key is configured" in capsys.readouterr().err
