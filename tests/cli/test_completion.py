"""Completion: what fits, found by the grammar; and asked for by real shells."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from refdesk.cli import main
from refdesk.cli.completion import list_completions
from tests.processes import REFDESK
from tests.programs import find_program
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Something of everything that has a name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFDESK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REFDESK__EMBEDDING__SOURCE", "none")
    (tmp_path / "tea.md").write_text("# Tea")
    assert main(["add", "tea.md", "--collection", "kitchen"]) == 0
    assert main(["servers", "add", "clock", "--", "x"]) == 0
    assert main(["keys", "make", "ci"]) == 0
    (tmp_path / "refdesk.yaml").write_text("mcpServers: {github: {command: x}}\n")
    capsys.readouterr()
    return tmp_path


def words(line: str) -> list[str]:
    return [word for word, _ in list_completions(line.split(" "))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sea", ["search"]),
        ("search --col", ["--collection"]),
        ("search x --mode ", ["basic", "advanced"]),
        ("search --mode=ba", ["--mode=basic"]),
        ("convert --to m", ["markdown"]),
        ("convert ", [":files"]),
        ("check --config ", [":files"]),
        ("servers re", ["remove", "refresh"]),
        ("servers remove --js", ["--json"]),
        ("documents re", ["remove"]),
        ("install claude-code --scope ", ["user", "project"]),
        ("keys make a --role ad", ["admin"]),
        ("doctor --only em", ["embedding"]),
        ("reference exit", ["exit-codes"]),
        ("servers add x -- --", []),
        ("nonsense ", []),
        ("search --limit ", []),
    ],
)
def test_words_are_completed_by_the_grammar(line: str, expected: list[str]) -> None:
    assert words(line) == expected


def test_an_option_that_was_given_is_not_offered_again() -> None:
    assert "--limit" not in words("search x --limit 3 --")
    assert "--metadata" in words("add x --metadata a=b --")


def test_names_of_what_there_is_are_completed(desk: Path) -> None:
    assert words("search --collection ") == ["kitchen", "refdesk"]
    assert words("documents remove kit") == ["kitchen/tea.md", ":files"]
    assert words("servers test ") == ["github", "clock"]
    assert words("keys revoke ") == ["ci"]
    assert "search_documentation" in words("call search_")
    assert words("search --data nowhere --collection k") == []
    assert words("add post") == ["postgresql", ":files"]


def test_what_cannot_be_read_has_no_names(desk: Path) -> None:
    (desk / "data" / "servers.json").write_text("{")
    (desk / "refdesk.yaml").write_text("a: [")
    assert words("servers test ") == []


def test_the_script_can_be_had_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    assert "complete -F _refdesk refdesk" in json.loads(capsys.readouterr().out)["script"]


def shell(name: str, script: str, desk: Path) -> str:
    """Run a script in a real shell, where `refdesk` is this one."""
    path = find_program(name)
    (desk / "bin").mkdir()
    program = desk / "bin" / "refdesk"
    program.write_text(f'#!/bin/sh\nexec {" ".join(REFDESK)} "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{desk / 'bin'}:{os.environ['PATH']}", "HOME": str(desk)}
    ended = subprocess.run(
        [path, "-c", script], cwd=desk, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert ended.stderr == ""
    return ended.stdout


def test_bash_completes_by_it(desk: Path) -> None:
    script = """
    eval "$(refdesk completion bash)"
    try() {
        COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"
        [[ "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _refdesk; echo "${COMPREPLY[*]}"
    }
    try "refdesk sea"; try "refdesk search --collection "; try "refdesk convert te"
    """
    assert shell("bash", script, desk).splitlines() == ["search", "kitchen refdesk", "tea.md"]


def test_fish_completes_by_it(desk: Path) -> None:
    script = "refdesk completion fish | source; complete -C 'refdesk sea'; complete -C 'refdesk search --collection k'"
    assert shell("fish", script, desk).split("\n")[:2] == ["search\tSearch the documentation", "kitchen"]


def test_zsh_takes_it(desk: Path) -> None:
    script = """
    autoload -Uz compinit && compinit -u -D
    eval "$(refdesk completion zsh)"
    _describe() { print -l -- "${(P@)2}" }
    words=(refdesk sea); CURRENT=2; _refdesk; print -- $_comps[refdesk]
    """
    assert shell("zsh", script, desk).splitlines() == ["search:Search the documentation", "_refdesk"]
