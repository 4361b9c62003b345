"""`refdesk init`, `install` and `uninstall`: what they write, what they leave, and when they ask."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refdesk.cli import main
from refdesk.cli.install import find_program
from refdesk.config.loading import load
from refdesk.config.setting_keys import SETTINGS
from refdesk.config.template import render_template
from refdesk.downstream.files.servers_file import load_servers

Run = Callable[..., str]
URL = "http://127.0.0.1:1/mcp"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in a project and a home that are new; answers all that it said."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("REFDESK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MCP_SERVER_PORT", "1")

    def command(*words: str, code: int = 0) -> str:
        ended = main(words)
        told = capsys.readouterr()
        assert ended == code, told.err
        return told.out + told.err

    return command


def parse_file(path: Path) -> Any:
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


HEADER = "Bearer ${KEY}"


@pytest.mark.parametrize(
    ("client", "file", "section", "entry"),
    [
        (
            "claude-code",
            ".claude.json",
            "mcpServers",
            {"type": "http", "url": URL, "headers": {"Authorization": HEADER}},
        ),
        ("cursor", ".cursor/mcp.json", "mcpServers", {"url": URL, "headers": {"Authorization": "Bearer ${env:KEY}"}}),
        (
            "vscode",
            ".config/Code/User/mcp.json",
            "servers",
            {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${env:KEY}"}},
        ),
        ("codex", ".codex/config.toml", "mcp_servers", {"url": URL, "bearer_token_env_var": "KEY"}),
        ("gemini", ".gemini/settings.json", "mcpServers", {"httpUrl": URL, "headers": {"Authorization": HEADER}}),
    ],
)
def test_each_client_is_set_up_in_its_own_words_and_taken_out_again(
    run: Run, home: Path, client: str, file: str, section: str, entry: dict[str, Any]
) -> None:
    said = run("install", client, "--key-env", "KEY", "--yes")
    path = home / file
    assert parse_file(path) == {section: {"refdesk": entry}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"+++ {path}" in said
    assert "To verify:" in said
    assert "KEY is not set here" in said
    assert f"no server answers at {URL} yet" in said
    assert "is up to date; nothing to do" in run("install", client, "--key-env", "KEY", "--yes")
    assert f"{client} ({path})" in run("doctor", "--only", "clients")
    run("uninstall", client, "--yes")
    assert parse_file(path) in ({section: {}}, {})
    assert "nothing to do" in run("uninstall", client, "--yes")


def test_a_client_can_start_the_desk_itself(run: Run, home: Path) -> None:
    run("install", "claude-code", "--stdio", "--data", "own", "--yes")
    entry = parse_file(home / ".claude.json")["mcpServers"]["refdesk"]
    assert entry == {
        "type": "stdio",
        "command": find_program()[0],
        "args": [*find_program()[1:], "serve", "--stdio", "--data", str(Path.cwd() / "own")],
    }
    assert Path(entry["command"]).is_absolute()


def test_an_environment_that_passes_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/me/.cache/uv/archive-v0/abc/bin/python")
    assert find_program() == ("uvx", "refdesk")


def test_a_project_file_is_for_everybody_in_it(run: Run) -> None:
    said = run("install", "claude-code", "--scope", "project", "--name", "docs", "--yes")
    assert parse_file(Path(".mcp.json"))["mcpServers"]["docs"]["url"] == f"{URL}?project={Path.cwd()}"
    assert Path(".mcp.json").stat().st_mode & 0o777 == 0o644
    assert "asks each person once whether to trust it" in said


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (["--scope", "project", "--project", "shop"], f"{URL}?project=shop"),
        (["--scope", "project", "--url", "https://desk.example.com"], "https://desk.example.com/mcp?project=project"),
        (
            ["--scope", "project", "--url", "https://desk.example.com/mcp?toolsets=docs", "--project", "a b"],
            "https://desk.example.com/mcp?toolsets=docs&project=a%20b",
        ),
        (["--scope", "project", "--url", f"{URL}?project=shop"], f"{URL}?project=shop"),
    ],
)
def test_a_project_file_names_the_project(run: Run, words: list[str], url: str) -> None:
    run("install", "cursor", *words, "--yes")
    assert parse_file(Path(".cursor/mcp.json"))["mcpServers"]["refdesk"] == {"url": url}
    assert "is up to date; nothing to do" in run("install", "cursor", *words, "--yes")
    assert "cursor (" in run("doctor", "--only", "clients")


def test_a_project_that_cannot_be_passed_on_is_refused(run: Run) -> None:
    assert "--project: cannot be used with --stdio" in run("install", "cursor", "--stdio", "--project", "shop", code=2)
    assert "--project: not a printable name" in run("install", "cursor", "--project", " ", code=2)


def test_what_is_there_stays_and_is_kept_beside(run: Run, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir(parents=True)
    before = '{\n  // mine\n  "mcpServers": {\n    "time": {"command": "uvx"}\n  }\n}\n'
    path.write_text(before)
    path.chmod(0o640)
    run("install", "cursor", "--yes")
    assert "// mine" in path.read_text()
    assert path.with_name("mcp.json.before-refdesk").read_text() == before
    assert path.stat().st_mode & 0o777 == 0o640


def test_without_anybody_to_ask_nothing_is_written(run: Run, home: Path) -> None:
    said = run("install", "codex", code=2)
    assert '+url = "http://127.0.0.1:1/mcp"' in said
    assert "use --yes to write" in said
    assert not home.exists()
    assert "+[mcp_servers.refdesk]" in run("install", "codex", "--dry-run")
    assert not home.exists()


@pytest.mark.parametrize(("answer", "code", "is_written"), [("y\n", 0, True), ("\n", 1, False)])
def test_a_person_is_asked(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, is_written: bool
) -> None:
    class Person:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    monkeypatch.setattr("sys.stdin", Person())
    assert f"Write this to {home / '.claude.json'}? [y/N]" in run("install", "claude-code", code=code)
    assert (home / ".claude.json").exists() == is_written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "ftp://x"), "is not a URL"),
        (("--url", "http://me:secret@h/mcp"), "must not contain a user or password"),
        (("--key-env", "rd-abc/123"), "give its name, not the key"),
        (("--stdio", "--key-env", "KEY"), "needs no key"),
        (("--name", "a b"), "--name: must be"),
    ],
)
def test_what_no_client_could_use_is_refused(run: Run, home: Path, words: tuple[str, ...], said: str) -> None:
    told = run("install", "codex", "--yes", *words, code=2)
    assert said in told
    assert "secret" not in told
    assert not home.exists()


def test_a_file_that_cannot_be_changed_safely_is_left(run: Run, home: Path) -> None:
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text('mcp_servers = { time = { url = "x" } }\n')
    assert "was not changed" in run("install", "codex", "--yes", code=1)
    assert (home / ".codex" / "config.toml").read_text() == 'mcp_servers = { time = { url = "x" } }\n'


def test_what_is_left_to_do_by_hand_is_told_in_the_words_of_the_file(run: Run, home: Path) -> None:
    (home / ".cursor").mkdir(parents=True)
    file = home / ".cursor" / "mcp.json"
    file.write_text('{"mcpServers": []}')
    told = run("install", "cursor", "--yes", "--json", code=1)
    by_hand = json.loads(told[: told.rindex("}") + 1].split("\nrefdesk: ")[0])["error"]["detail"].partition("by hand:")[
        2
    ]
    assert json.loads(by_hand) == {"mcpServers": {"refdesk": {"url": URL}}}
    assert file.read_text() == '{"mcpServers": []}'


def test_what_cannot_be_taken_out_is_named(run: Run, home: Path) -> None:
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text('mcp_servers = { refdesk = { url = "x" } }\n')
    told = run("uninstall", "codex", "--yes", code=1)
    assert told.rstrip().endswith("Remove 'refdesk' from mcp_servers by hand.")


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        ("cursor", ".cursor/mcp.json", '{\n\t"mcpServers": {\n\t\t"time": {"url": "x"} // mine\n\t}\n}\n'),
        ("codex", ".codex/config.toml", '# mine\n[mcp_servers.time]\nurl = "x"\n\n[profiles.a]\nb = 1\n'),
    ],
)
def test_the_line_ends_of_windows_stay(run: Run, home: Path, client: str, file: str, text: str) -> None:
    path = home / file
    path.parent.mkdir(parents=True)
    path.write_bytes(text.replace("\n", "\r\n").encode())
    run("install", client, "--yes")
    run("install", client, "--yes", "--stdio")
    changed = path.read_bytes()
    assert b"refdesk" in changed
    assert changed.count(b"\n") == changed.count(b"\r\n") == changed.count(b"\r")
    run("uninstall", client, "--yes")
    assert path.read_bytes() == text.replace("\n", "\r\n").encode()


def test_a_file_that_is_read_only_is_left(run: Run, home: Path) -> None:
    home.mkdir()
    (home / ".claude.json").write_text("{}")
    (home / ".claude.json").chmod(0o444)
    assert "is read-only and was not changed" in run("install", "claude-code", "--yes", code=1)
    assert [file.name for file in home.iterdir()] == [".claude.json"]
    assert (home / ".claude.json").read_text() == "{}"


def test_json_tells_what_changed(run: Run, home: Path) -> None:
    told = json.loads(run("install", "gemini", "--yes", "--json"))
    assert (told["file"], told["changed"], told["backup"]) == (str(home / ".gemini" / "settings.json"), True, None)
    assert any(line.startswith("+") and "httpUrl" in line for line in told["difference"])


def test_a_project_is_begun_with_two_files_that_can_be_used(run: Run) -> None:
    said = run("init")
    assert len(re.findall(r"^Wrote", said, re.MULTILINE)) == 2
    assert "refdesk serve" in said
    assert parse_file(Path(".mcp.json")) == {"mcpServers": {"refdesk": {"type": "http", "url": URL}}}
    assert "The configuration is valid." in run("check")
    assert "nothing to do" in run("init")


def test_what_was_written_by_hand_is_shown_and_left_unless_forced(run: Run) -> None:
    Path("refdesk.yaml").write_text("server: {port: 9}\n")
    Path(".mcp.json").write_text('{"mcpServers": {"time": {"command": "uvx"}}}\n')
    said = run("init", code=1)
    assert "-server: {port: 9}" in said
    assert "--force overwrites it" in said
    assert Path("refdesk.yaml").read_text() == "server: {port: 9}\n"
    assert set(parse_file(Path(".mcp.json"))["mcpServers"]) == {"time", "refdesk"}
    run("init", "--force")
    assert Path("refdesk.yaml").read_text() == render_template()
    assert Path("refdesk.yaml.before-refdesk").read_text() == "server: {port: 9}\n"


def test_a_dry_run_writes_nothing(run: Run) -> None:
    assert "+server:" in run("init", "--dry-run")
    assert list(Path.cwd().iterdir()) == []


def test_the_template_sets_nothing_and_uncommented_sets_the_defaults(tmp_path: Path) -> None:
    as_it_is, uncommented = tmp_path / "refdesk.yaml", tmp_path / "all.yaml"
    as_it_is.write_text(render_template())
    assert set(load(as_it_is, {}).sources.values()) == {"default", "refdesk.yaml"}
    assert load_servers(load(as_it_is, {}), {}).servers == {}
    uncommented.write_text(re.sub(r"^( *)# (\w+:(?: |$))", r"\1\2", render_template(), flags=re.MULTILINE))
    filled, defaults = load(uncommented, {}), load(None, {})
    assert filled.model_dump() == defaults.model_dump()


def test_every_setting_is_in_the_template() -> None:
    text = render_template()
    words = " ".join(re.sub(r"\n *# ", " ", text).split())
    for setting in SETTINGS.values():
        name = setting.key.rpartition(".")[2]
        assert re.search(rf"^ *(# )?{name}:", text, re.MULTILINE), setting.key
        assert setting.description.split("`")[0][:30] in words
