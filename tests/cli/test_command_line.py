"""What every command has in common: mistakes told in a sentence, JSON whatever happens, exit codes, closed pipes."""

from __future__ import annotations

import io
import json
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refdesk.cli import client_setup, main
from refdesk.cli.error_report import ExitCode, report_failure
from refdesk.cli.parser import CLIENTS, PAGES, SETS, cli, parse
from refdesk.errors import EngineError
from refdesk.ingest.recipes.recipe import names
from reference_pages import PAGES as WRITTEN
from reference_pages import render_exit_codes_page
from tests.processes import REFDESK, environment
from tests.waiting import PATIENCE_SECONDS

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("line", "facts", "help_of"),
    [
        ("serch x", "serch search", "refdesk"),
        ("xyzzy", "xyzzy", "refdesk"),
        ("--data x search y", "--data follow", "refdesk"),
        ("search", "Missing QUERY", "refdesk search"),
        ("search x --limt 3", "--limt --limit", "refdesk search"),
        ("search x --lim 3", "--lim --limit", "refdesk search"),
        ("search x --limit lots", "--limit lots integer", "refdesk search"),
        ("search x --max-results 0", "--max-results 0 x>=1", "refdesk search"),
        ("ask x --max-tokens -1", "--max-tokens -1 x>=1", "refdesk ask"),
        ("servers logs x --lines many", "--lines many integer", "refdesk servers logs"),
        ("convert x -o", "-o requires", "refdesk convert"),
        ("convert x --to pdf", "--to pdf markdown html json", "refdesk convert"),
        ("documents purge", "purge list remove", "refdesk documents"),
        ("servers lst", "lst list", "refdesk servers"),
        ("servers remove", "Missing NAME", "refdesk servers remove"),
        ("tools a b", "extra (b)", "refdesk tools"),
        ("install emacs", "CLIENT emacs claude-code cursor", "refdesk install"),
        ("install cursor --url x --stdio", "--stdio --url", "refdesk install"),
        ("read x --pages 1 --find y", "--find --pages", "refdesk read"),
        ("add x --no-wait --watch", "--watch --no-wait", "refdesk add"),
        ("doctor --only modell", "--only modell engine", "refdesk doctor"),
        ("doctor --timeout 0", "--timeout 0.0 x>0", "refdesk doctor"),
    ],
)
def test_a_usage_error_names_its_cause_and_the_help_page(line: str, facts: str, help_of: str, capsys: Captured) -> None:
    assert main(line.split()) == ExitCode.USAGE_ERROR
    told = capsys.readouterr()
    assert told.out == ""
    problem, hint = told.err.splitlines()
    assert problem.startswith("refdesk: ")
    assert [fact for fact in facts.split() if fact not in problem] == []
    assert hint == f"hint: see `{help_of} --help`"


def test_the_same_is_said_in_json_on_standard_output(capsys: Captured) -> None:
    assert main(["search", "x", "--limt", "3", "--json"]) == ExitCode.USAGE_ERROR
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert error == {
        "type": "Misuse",
        "detail": "No such option '--limt'. Did you mean '--limit'?",
        "retryable": False,
        "hint": "see `refdesk search --help`",
    }
    assert "Did you mean '--limit'?" in told.err


def test_json_after_two_dashes_is_not_ours(capsys: Captured) -> None:
    assert main(["servers", "add", "--", "x", "--json"]) == ExitCode.USAGE_ERROR
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "code", "said", "hint"),
    [
        (
            EngineError("the store is away"),
            ExitCode.FAILED,
            "the store is away",
            "run `refdesk doctor` to find the cause",
        ),
        (
            PermissionError(13, "Permission denied", "/x"),
            ExitCode.FAILED,
            "/x: Permission denied",
            "run `refdesk doctor` to find the cause",
        ),
        (ZeroDivisionError("x"), ExitCode.FAILED, "internal error", "set REFDESK_TRACEBACK=1"),
    ],
)
def test_a_failure_says_what_to_do_and_shows_no_traceback(
    error: Exception, code: ExitCode, said: str, hint: str | None, capsys: Captured
) -> None:
    assert report_failure(error, as_json=True) == code
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    printed = json.loads(told.out)["error"]
    assert said in printed["detail"]
    assert (hint is None) == ("hint" not in printed)
    assert hint is None or hint in told.err


def test_a_fault_shows_its_lines_to_who_asks(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("REFDESK_TRACEBACK", "1")
    report_failure(ZeroDivisionError("x"), as_json=False)
    assert "ZeroDivisionError: x" in capsys.readouterr().err


def test_without_a_command_it_says_how_to_begin(capsys: Captured) -> None:
    assert main([]) == ExitCode.USAGE_ERROR
    told = capsys.readouterr()
    assert told.out == ""
    for word in ("add", "search", "serve", "install claude-code", "doctor"):
        assert f"refdesk {word}" in told.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("documents rm a", {"action": "remove", "ids": ("a",)}),
        ("documents --json delete a --data x b", {"action": "remove", "ids": ("a", "b"), "json": True}),
        ("documents ls", {"action": "list"}),
        ("collections make a", {"action": "create", "names": ("a",)}),
        ("collections rm a", {"action": "remove"}),
        ("keys remove a", {"action": "revoke", "name": "a"}),
        ("keys add a", {"action": "make"}),
        ("servers rm a", {"action": "remove", "name": "a"}),
        ("servers ls", {"action": "list"}),
        ("search how --limit 3 to start", {"query": ("how", "to", "start"), "limit": 3}),
        ("servers add a --type http http://h", {"name": "a", "url": "http://h", "command": []}),
        ("servers add a -- x --json -- y", {"command": ["x", "--json", "--", "y"], "json": False}),
    ],
)
def test_verbs_are_alike_everywhere_and_options_stand_where_one_likes(line: str, meant: dict[str, Any]) -> None:
    parsed = parse(line.split()).arguments
    assert {name: getattr(parsed, name) for name in meant} == meant


def test_every_command_can_print_json_but_the_server() -> None:
    without = {name for name, one in cli.commands.items() if not any("--json" in param.opts for param in one.params)}
    assert without == {"serve"}


def test_what_the_grammar_lists_is_what_there_is() -> None:
    assert sorted(SETS) == names()
    assert list(CLIENTS) == list(client_setup.CLIENTS)
    assert list(PAGES) == list(WRITTEN)


def test_every_exit_code_is_on_its_page_and_has_a_sentence() -> None:
    for code in ExitCode:
        assert f"| {code.value} | {code.meaning} |" in render_exit_codes_page()
        assert code.meaning.endswith(".")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """More than a pipe holds, so that the command is still writing when nobody reads."""
    process = subprocess.Popen(
        [*REFDESK, "reference", "settings"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment(tmp_path), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(PATIENCE_SECONDS) == ExitCode.BROKEN_PIPE


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_an_output_that_the_caller_closed_is_no_fault(closed: str, tmp_path: Path) -> None:
    line = f"{' '.join(REFDESK)} completion bash {closed}"
    ended = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, env=environment(tmp_path), timeout=PATIENCE_SECONDS
    )
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, b"")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("search", "x", "--collection", "nowhere"), "`refdesk collections` lists the collections"),
        (("read", "nowhere.pdf"), "`refdesk documents` lists the documents"),
        (("call", "nothing"), "`refdesk tools` lists the tools"),
        (("tools", "nothing"), "`refdesk tools` lists the tools"),
    ],
)
def test_what_is_not_there_is_said_with_the_command_that_lists_what_is(
    words: tuple[str, ...], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("REFDESK__EMBEDDING__SOURCE", "none")
    assert main([*words, "--data", str(tmp_path)]) == ExitCode.FAILED
    told = capsys.readouterr()
    first, second = told.err.splitlines()
    assert first.startswith("refdesk: ")
    assert second.startswith(f"hint: {hint}")
    assert told.out == ""


def test_ctrl_c_ends_a_command_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    class Interrupted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Interrupted()))
    assert main(["add", "-", "--title", "Notes", "--data", str(tmp_path)]) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_terminal_is_shown_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, terminal = pty.openpty()
    with open(leader, "rb", buffering=0) as shown, open(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        assert main(["doctor", "--only", "python", "--data", str(tmp_path)]) == ExitCode.OK
        assert b"\x1b[32mok" in shown.read(65536)


def test_a_page_wider_than_the_terminal_is_folded(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["add", "--help"]) == ExitCode.OK
    options = capsys.readouterr().out.partition("Examples:")[0]
    assert max(map(len, options.splitlines())) <= 50


def test_help_of_every_command_can_be_read(capsys: Captured) -> None:
    for name in cli.commands:
        assert main([name, "--help"]) == ExitCode.OK
        shown = capsys.readouterr().out
        assert shown.startswith(f"Usage: refdesk {name}")
        assert sys.executable not in shown
