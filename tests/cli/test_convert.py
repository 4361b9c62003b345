"""`refdesk convert` and `refdesk read`."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docling_core.types.doc.document import DoclingDocument

from refdesk.cli import main
from refdesk.cli.terminal import ProgressBar
from tests.real_files import FILES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(FILES, folder)
    return folder


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Refdesk = Callable[..., Ended]


@pytest.fixture
def refdesk(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refdesk:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(project.parent))
    monkeypatch.setenv("REFDESK_DATA", str(project.parent / "data"))
    return lambda *arguments: Ended(main(arguments), *capsys.readouterr())


def answer(refdesk: Refdesk, *arguments: str) -> Any:
    done = refdesk(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_file_goes_to_standard_output_as_markdown(refdesk: Refdesk) -> None:
    done = refdesk("convert", "office/guide.docx")
    assert done.code == 0
    assert "\n# The Guide\n" in done.out
    assert "```" in done.out
    assert done.err == ""


def test_json_is_a_docling_document_and_html_a_page(refdesk: Refdesk, project: Path) -> None:
    assert refdesk("convert", "office/deck.pptx", "--to", "json", "-o", "deck.json").code == 0
    assert DoclingDocument.model_validate_json((project / "deck.json").read_bytes()).name == "deck"
    assert refdesk("convert", "office/book.xlsx", "--to", "html").out.startswith("<!DOCTYPE html>")


def test_a_folder_goes_to_a_folder_with_no_name_twice(refdesk: Refdesk, project: Path) -> None:
    done = refdesk("convert", "office", "text/notes.txt", "-o", "out")
    assert done.code == 0, done.err
    names = sorted(path.name for path in (project / "out").iterdir())
    assert {"guide.md", "guide.docx.md", "deck.md", "notes.md"} <= set(names)
    assert len(names) == len([path for path in (project / "office").iterdir() if path.suffix in SUFFIXES]) + 1


SUFFIXES = {".docx", ".doc", ".odt", ".rtf", ".epub", ".pptx", ".odp", ".xlsx", ".ods", ".xls", ".md"}


def test_files_of_one_name_do_not_take_each_others_place(refdesk: Refdesk, project: Path) -> None:
    for folder in ("one", "two", "three", "four"):
        (project / folder).mkdir()
        (project / folder / "same.txt").write_text(folder)
    done = refdesk("convert", "one", "two", "three", "four", "-o", "out")
    assert done.code == 0, done.err
    assert sorted(path.read_text().strip() for path in (project / "out").iterdir()) == ["four", "one", "three", "two"]


@pytest.mark.parametrize("arguments", [("own", "-o", "own"), ("own/a.md", "-o", "own"), ("own/a.md", "-o", "own/a.md")])
def test_what_is_converted_is_not_written_over(refdesk: Refdesk, project: Path, arguments: tuple[str, ...]) -> None:
    (project / "own").mkdir()
    (project / "own" / "a.md").write_text("* as   it was\n")
    done = refdesk("convert", *arguments)
    assert (project / "own" / "a.md").read_text() == "* as   it was\n"
    assert (project / "own" / "a.md.md").exists() == (done.code == 0)
    assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are always UTF-8")
def test_a_file_may_have_any_name(refdesk: Refdesk, project: Path) -> None:
    name = os.fsdecode("Grüße\n\x1b[31m.txt".encode("cp1252"))
    (project / name).write_text("hello")
    done = refdesk("convert", name)
    assert (done.code, done.out) == (0, "hello\n"), done.err
    assert "hello" in refdesk("read", name, "--pages", "1").out


def test_what_fails_is_told_and_the_rest_is_done(refdesk: Refdesk, project: Path) -> None:
    (project / "text" / "broken.docx").write_bytes(b"PK\x03\x04 no zip")
    done = refdesk("convert", "text", "-o", "out", "--json")
    assert done.code == 1
    results = {os.path.basename(result["source"]): result for result in json.loads(done.out)}
    assert "error" in results["broken.docx"]
    assert (project / "out" / "notes.md").exists()
    assert "broken.docx" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.pdf",), "No such file"),
        (("office",), "need an output folder"),
        (("text/notes.txt", "--pages", "x"), "--pages"),
        (("http://127.0.0.1:1/x",), "127.0.0.1"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(refdesk: Refdesk, arguments: tuple[str, ...], said: str) -> None:
    done = refdesk("convert", *arguments)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err


def test_the_name_of_a_file_cannot_control_the_terminal(refdesk: Refdesk) -> None:
    done = refdesk("convert", "nowhere\x1b[2J.pdf")
    assert done.code == 1
    assert "nowhere[2J.pdf" in done.err
    assert "\x1b" not in done.err


def test_a_document_is_read_in_parts(refdesk: Refdesk) -> None:
    metadata = answer(refdesk, "read", "office/guide.docx")["structuredContent"]
    assert "Install" in [section["title"] for section in metadata["sections"]]
    by_handle = answer(refdesk, "read", metadata["doc_id"], "--section", "install")["structuredContent"]
    assert by_handle["text"].startswith("## Install")
    assert answer(refdesk, "read", "office/deck.pptx", "--pages", "2")["structuredContent"]["page_start"] == 2
    found = answer(refdesk, "read", "refdesk/index.md", "--find", "MCP client")["structuredContent"]
    assert found["results"]


def test_a_document_that_is_not_there_is_told(refdesk: Refdesk) -> None:
    done = refdesk("read", "nowhere")
    assert done.code == 1
    assert "There is no document 'nowhere'" in done.err


class Terminal(io.StringIO):
    """Standard error as a terminal would be."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_a_terminal_sees_a_bar_that_fills_and_is_cleared() -> None:
    terminal = Terminal(is_terminal=True)
    bar = ProgressBar(2, terminal)
    bar.advance("a.pdf", 0.5, "page 5 of 10")
    bar.finish("a.pdf")
    bar.finish("b.pdf")
    bar.clear()
    assert "[######..................] 0/2 a.pdf: page 5 of 10" in terminal.getvalue()
    assert "[########################] 2/2 b.pdf" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_pipe_sees_no_bar() -> None:
    pipe = Terminal(is_terminal=False)
    bar = ProgressBar(1, pipe)
    bar.finish("a.pdf")
    bar.clear()
    assert pipe.getvalue() == ""
