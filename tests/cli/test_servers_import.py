"""`refdesk servers import`: what is taken over from other clients, what is not, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refdesk.cli import main
from refdesk.downstream.files.servers_file import ServersFile

SECRET = "hunter2hunter2"

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """The command with `--json`; answers the outcome by server, or what it said when it failed."""
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("REFDESK_DATA", str(tmp_path / "data"))
    everything = []

    def command(*arguments: str, code: int = 0) -> Any:
        ended = main(["servers", "import", *arguments, "--json"])
        said = capsys.readouterr()
        everything.append(said.out + said.err)
        assert ended == code, said.err
        if code:
            return said.err
        return {one["name"]: (one["outcome"], one["reason"]) for one in json.loads(said.out)["servers"]}

    yield command
    assert SECRET not in "".join(everything)
    assert "Traceback" not in "".join(everything)


@pytest.fixture
def file(tmp_path: Path) -> ServersFile:
    return ServersFile(tmp_path / "data" / "servers.json")


def write_servers(path: Path, servers: dict[str, Any], section: str = "mcpServers") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("// a comment\n" + json.dumps({section: servers}))
    return path


def test_all_clients_are_asked_and_each_server_has_its_outcome(run: Run, file: ServersFile, tmp_path: Path) -> None:
    write_servers(
        tmp_path / ".cursor" / "mcp.json", {"a": {"command": "x"}, "b": {"comand": SECRET}, "same": {"command": "s"}}
    )
    write_servers(
        tmp_path / ".config" / "Claude" / "claude_desktop_config.json",
        {
            "a": {"command": "other"},
            "same": {"command": "s"},
            "me": {"command": "refdesk", "args": ["serve", "--stdio"]},
            "github.com/org/tool": {"url": "https://h/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
            "off": {"command": "x", "disabled": True, "timeout": 5},
        },
    )
    write_servers(tmp_path / ".config" / "Code" / "User" / "settings.json", {"fontSize": 12}, "editor")
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('[mcp_servers.c]\ncommand = "x"\nenabled_tools = ["t"]\n')
    outcomes = run()
    assert outcomes == {
        "a": ("skipped", "another server with this name was imported"),
        "same": ("skipped", "identical to an imported server"),
        "me": ("skipped", "this is Refdesk itself"),
        "github.com-org-tool": ("imported", "named 'github.com/org/tool' there"),
        "off": ("imported", "timeout is ignored, as clients disagree on its unit; set call_timeout_seconds"),
        "b": ("skipped", "comand: unknown key; did you mean command?"),
        "c": ("imported", ""),
    }
    assert file.entries().keys() == {"a", "same", "github.com-org-tool", "off", "c"}
    assert file.entries()["off"] == {"command": "x", "enabled": False}
    assert file.entries()["c"] == {"command": "x", "tools": {"allow": ["t"]}}


def test_a_second_time_nothing_changes_and_others_are_replaced_only_when_asked(
    run: Run, file: ServersFile, tmp_path: Path
) -> None:
    path = write_servers(tmp_path / "some.json", {"a": {"command": "x"}})
    assert run(str(path)) == {"a": ("imported", "")}
    assert run(str(path)) == {"a": ("skipped", "already present")}
    write_servers(path, {"a": {"command": "y"}})
    assert run(str(path)) == {"a": ("skipped", "another server has this name; --replace replaces it")}
    assert file.entries()["a"]["command"] == "x"
    assert run(str(path), "--replace") == {"a": ("imported", "")}
    assert file.entries()["a"]["command"] == "y"


def test_a_dry_run_writes_nothing(run: Run, file: ServersFile, tmp_path: Path) -> None:
    path = write_servers(tmp_path / "some.json", {"a": {"command": "x"}})
    assert run(str(path), "--dry-run") == {"a": ("imported", "")}
    assert not file.path.exists()


def test_secrets_stay_variables_and_places_become_fixed(
    run: Run, file: ServersFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", SECRET)
    (tmp_path / "work" / ".env").write_text(f"B_KEY={SECRET}\n")
    entry = {"command": "x", "args": ["${workspaceFolder}/s.py", "${env:A_KEY}"], "envFile": "${workspaceFolder}/.env"}
    asks = {"command": "x", "env": {"K": "${input:key}"}}
    write_servers(tmp_path / "work" / ".vscode" / "mcp.json", {"a": entry, "asks": asks}, "servers")
    outcomes = run("--from", "vscode")
    assert outcomes["a"] == ("imported", "")
    assert outcomes["asks"][1].startswith("env.K: cannot prompt for 'key'")
    work = str(tmp_path / "work")
    assert file.entries() == {
        "a": {"command": "x", "args": [f"{work}/s.py", "${env:A_KEY}"], "cwd": work, "envFile": f"{work}/.env"}
    }
    assert SECRET not in file.path.read_text()


def test_a_server_of_the_configuration_is_not_hidden_by_an_import(run: Run, tmp_path: Path) -> None:
    Path("refdesk.yaml").write_text("mcpServers: {a: {command: x}}\n")
    path = write_servers(tmp_path / "some.json", {"a": {"command": "y"}})
    assert run(str(path), "--replace") == {"a": ("skipped", "the configuration has a server with this name")}


def test_servers_of_other_projects_are_named_and_only_some_may_be_wanted(run: Run, tmp_path: Path) -> None:
    projects = {"/else": {"mcpServers": {"p": {"command": "x"}}}}
    (tmp_path / ".claude.json").write_text(
        json.dumps({"projects": projects, "mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}})
    )
    assert run("--only", "b") == {"b": ("imported", "")}
    assert run()["p"] == ("skipped", "claude-code uses it only in /else; import it there")


def test_a_file_that_was_named_must_be_one(run: Run, tmp_path: Path) -> None:
    assert "no such file" in run(str(tmp_path / "none.json"), code=2)
    assert "no servers in it" in run(str(write_servers(tmp_path / "x.json", {}, "editor")), code=2)


def test_a_broken_file_among_those_that_are_found_hides_no_other(run: Run, tmp_path: Path, file: ServersFile) -> None:
    write_servers(tmp_path / ".cursor" / "mcp.json", {"a": {"command": "x"}})
    (tmp_path / ".claude.json").write_text("{")
    assert run() == {"a": ("imported", "")}


def test_where_there_is_nothing_that_is_said(run: Run) -> None:
    assert "no servers found" in run(code=1)


def test_people_are_shown_a_table(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_servers(tmp_path / "some.json", {"a": {"command": "x"}, "b\x1b[2J": {"command": "x"}, "c": 5})
    assert main(["servers", "import", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  FROM  OUTCOME   WHY",
        "a     file  imported  -",
        "b-2J  file  imported  named 'b\\x1b[2J' there",
        "c     file  skipped   expected a mapping, not a number",
        "2 of 3 servers would be imported.",
    ]
