"""What holds the pages to the truth finds what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.docs.given import furnish, leave_behind
from tests.docs.not_run import INTERNET, MISSING, PROGRAMS, REASONS, SCRIPTS, check, options_of_inline, why
from tests.docs.shown import difference
from tests.docs.workplace import Workplace


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("2 new, 0 changed", "\n3 new, 7 changed\n"),
        ("one\n[…]\nthree", "one\ntwo\nthree"),
        ("again. […]", "again. And more."),
        ("again. […]", "again."),
        ('{"a": [{"b": "x […]"}]}', '{"rest": {"c": 1, "a": [0, {"b": "x and y"}]}}'),
        ('{"score": 0.5}', '{"score": 0.7, "more": true}'),
    ],
)
def test_what_differs_only_in_numbers_and_in_what_is_left_out_is_the_same(shown: str, printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("2 new, 0 changed", "2 new"),
        ("one\ntwo", "two\none"),
        ("Sources\n[1] a.md", "Sources\n[1] b.md"),
        ('{"a": "x"}', '{"a": "y"}'),
        ('{"a": 1}', '{"b": 1}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": 1}', "nothing"),
    ],
)
def test_everything_else_is_a_difference(shown: str, printed: str) -> None:
    assert difference(shown, printed) is not None


@pytest.mark.parametrize(
    "command",
    [
        "refdesk serve --no-such-option",
        "refdesk no-such-command",
        "scripts/serve --no-such-option",
        "scripts/no-such-script",
        "uv sync --extra no-such-extra",
        "pip install refdesk[no-such-extra]",
        "uvx refdesk no-such-command",
        "uv run python benchmarks/startup.py --no-such-option",
        "python benchmarks/no_such.py",
        "curl -d {no-json} http://127.0.0.1:8001/mcp",
        "docker compose --profile no-such-profile up",
    ],
)
def test_a_command_that_is_not_run_is_found_out_all_the_same(command: str) -> None:
    assert check(command.split()) is not None


def test_every_program_that_is_not_run_has_one_of_the_reasons() -> None:
    assert {why([program]) for program in PROGRAMS} | {why([f"scripts/{name}"]) for name in SCRIPTS} <= REASONS
    assert why(["refdesk", "add", "https://example.com/"]) == INTERNET
    with pytest.raises(KeyError):
        why(["no-such-program"])


def test_options_in_running_text_are_looked_at() -> None:
    assert options_of_inline("`refdesk add FOLDER --watch`, `refdesk servers add NAME -- COMMAND --any`") == []
    assert len(options_of_inline("`refdesk add --wotch`, `refdesk nothing`")) == 2


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_command_that_fails_is_noted_and_one_that_cannot_be_run_is_not_run(tmp_path: Path) -> None:
    text = ".venv/bin/refdesk read nothing.pdf\nrefdesk --version\ndocker ps\nfalse\n"
    block = Block(page="page.md", line=1, language="sh", title="", remark="", text=text, heading="")
    place = Workplace(tmp_path / "refdesk", tmp_path)
    place.prepare()
    outcome = await place.run([block])
    assert outcome.not_run == [["docker", "ps"]]
    assert outcome.printed[0].startswith("refdesk 0")
    assert [failure.partition(": ")[2] for failure in outcome.failed] == [".venv/bin/refdesk read nothing.pdf", "false"]
    assert len(outcome.run) == 4


@pytest.mark.anyio
async def test_commands_after_a_missing_program_find_its_files(tmp_path: Path) -> None:
    text = "unzip -q a.zip\nwget https://docs.example.com/\ncat scifact/corpus.jsonl site/docs.example.com/*\n"
    block = Block(page="page.md", line=1, language="sh", title="", remark="", text=text, heading="")
    place = Workplace(tmp_path / "refdesk", tmp_path, site=1, find=lambda name: None)
    place.prepare()
    furnish(place.folder, place.home)
    leave_behind(place.folder, place.home, 1, find=place.find)
    outcome = await place.run([block])
    assert outcome.not_run == [["unzip", "-q", "a.zip"], ["wget", "http://127.0.0.1:1/"]]
    assert {why(words) for words in outcome.not_run} == {MISSING}
    assert outcome.failed == []
