"""`refdesk convert` and `refdesk read`, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docling_core.types.doc.document import DoclingDocument

from refdesk.cli.progress import ProgressBar
from tests import forked
from tests.processes import environment
from tests.real_files import FILES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(FILES, folder)
    return folder


def refdesk(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(project.parent, REFDESK_DATA=str(project.parent / "data"))
    return subprocess.run(
        [*forked.refdesk(), *arguments], cwd=project, env=env, capture_output=True, text=True, timeout=60
    )


def answer(project: Path, *arguments: str) -> Any:
    done = refdesk(project, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_goes_to_standard_output_as_markdown(project: Path) -> None:
    done = refdesk(project, "convert", "office/guide.docx")
    assert done.returncode == 0
    assert "\n# The Guide\n" in done.stdout
    assert "```" in done.stdout
    assert done.stderr == ""


def test_json_is_a_docling_document_and_html_a_page(project: Path) -> None:
    assert refdesk(project, "convert", "office/deck.pptx", "--to", "json", "-o", "deck.json").returncode == 0
    assert DoclingDocument.model_validate_json((project / "deck.json").read_bytes()).name == "deck"
    assert refdesk(project, "convert", "office/book.xlsx", "--to", "html").stdout.startswith("<!DOCTYPE html>")


def test_a_folder_goes_to_a_folder_with_no_name_twice(project: Path) -> None:
    done = refdesk(project, "convert", "office", "text/notes.txt", "-o", "out")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (project / "out").iterdir())
    assert {"guide.md", "guide.docx.md", "deck.md", "notes.md"} <= set(names)
    assert len(names) == len([path for path in (project / "office").iterdir() if path.suffix in SUFFIXES]) + 1


SUFFIXES = {".docx", ".doc", ".odt", ".rtf", ".epub", ".pptx", ".odp", ".xlsx", ".ods", ".xls", ".md"}


def test_files_of_one_name_do_not_take_each_others_place(project: Path) -> None:
    for folder in ("one", "two", "three", "four"):
        (project / folder).mkdir()
        (project / folder / "same.txt").write_text(folder)
    done = refdesk(project, "convert", "one", "two", "three", "four", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert sorted(path.read_text().strip() for path in (project / "out").iterdir()) == ["four", "one", "three", "two"]


@pytest.mark.parametrize("arguments", [("own", "-o", "own"), ("own/a.md", "-o", "own"), ("own/a.md", "-o", "own/a.md")])
def test_what_is_converted_is_not_written_over(project: Path, arguments: tuple[str, ...]) -> None:
    (project / "own").mkdir()
    (project / "own" / "a.md").write_text("* as   it was\n")
    done = refdesk(project, "convert", *arguments)
    assert (project / "own" / "a.md").read_text() == "* as   it was\n"
    assert (project / "own" / "a.md.md").exists() == (done.returncode == 0)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are always UTF-8")
def test_a_file_may_have_any_name(project: Path) -> None:
    name = os.fsdecode("Grüße\n\x1b[31m.txt".encode("cp1252"))
    (project / name).write_text("hello")
    done = refdesk(project, "convert", name)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "hello" in refdesk(project, "read", name, "--pages", "1").stdout


def test_what_fails_is_told_and_the_rest_is_done(project: Path) -> None:
    (project / "text" / "broken.docx").write_bytes(b"PK\x03\x04 no zip")
    done = refdesk(project, "convert", "text", "-o", "out", "--json")
    assert done.returncode == 1
    results = {os.path.basename(result["source"]): result for result in json.loads(done.stdout)}
    assert "error" in results["broken.docx"]
    assert (project / "out" / "notes.md").exists()
    assert "broken.docx" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.pdf",), "No such file"),
        (("office",), "need an output folder"),
        (("text/notes.txt", "--pages", "x"), "--pages"),
        (("http://127.0.0.1:1/x",), "127.0.0.1"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(project: Path, arguments: tuple[str, ...], said: str) -> None:
    done = refdesk(project, "convert", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_document_is_read_in_parts(project: Path) -> None:
    metadata = answer(project, "read", "office/guide.docx")["structuredContent"]
    assert "Install" in [section["title"] for section in metadata["sections"]]
    by_handle = answer(project, "read", metadata["doc_id"], "--section", "install")["structuredContent"]
    assert by_handle["text"].startswith("## Install")
    assert answer(project, "read", "office/deck.pptx", "--pages", "2")["structuredContent"]["page_start"] == 2
    found = answer(project, "read", "refdesk/index.md", "--find", "MCP client")["structuredContent"]
    assert found["results"]


def test_a_document_that_is_not_there_is_told(project: Path) -> None:
    done = refdesk(project, "read", "nowhere")
    assert done.returncode == 1
    assert "There is no document 'nowhere'" in done.stderr


class Terminal:
    """Standard error as a terminal would be."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.written = ""
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        return


def test_a_terminal_sees_a_bar_that_fills_and_is_cleared() -> None:
    terminal = Terminal(is_terminal=True)
    bar = ProgressBar(2, terminal)
    bar.advance("a.pdf", 0.5, "page 5 of 10")
    bar.finish("a.pdf")
    bar.finish("b.pdf")
    bar.clear()
    assert "[######..................] 0/2 a.pdf: page 5 of 10" in terminal.written
    assert "[########################] 2/2 b.pdf" in terminal.written
    assert terminal.written.endswith("\r\x1b[K")


def test_a_pipe_sees_no_bar() -> None:
    pipe = Terminal(is_terminal=False)
    bar = ProgressBar(1, pipe)
    bar.finish("a.pdf")
    bar.clear()
    assert pipe.written == ""
