"""Scanned pages: told as such without the OCR extra, read with it."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pypdfium2 as pdfium
import pytest

from refdesk.documents.convert.pdf import convert, ocr
from refdesk.documents.convert.pdf.ocr import PageRecognizer, format_pages
from refdesk.documents.convert.pdf.page_reader import PageContent, Word, read_page
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Document, Paragraph
from refdesk.documents.sandbox import SandboxLimits, open_sandbox
from tests.documents.convert.pdf.made import FILES, pdf

MANUAL = (FILES / "manual.pdf").read_bytes()

CHAPTER = 2
"""The place of the page in the manual on which its first chapter starts."""

needs_extra = pytest.mark.skipif(
    not all(map(find_spec, ocr.PACKAGES)), reason="the ocr extra is not installed: scripts/setup --extra ocr"
)


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra, whatever this one has."""
    monkeypatch.setitem(sys.modules, "rapidocr", None)


def make_scan(data: bytes, places: Sequence[int], *, quarters: int = 0) -> bytes:
    """Render pages of a file as images without text; `quarters` rotates them."""
    with pdfium.PdfDocument(data) as sample, pdfium.PdfDocument.new() as made:
        for place in places:
            page = sample[place]
            picture = pdfium.PdfImage.new(made)
            picture.set_bitmap(page.render(scale=200 / 72, rotation=-90 * quarters % 360))
            width, height = page.get_size()[:: -1 if quarters % 2 else 1]
            picture.set_matrix(pdfium.PdfMatrix().scale(width, height))
            scan = made.new_page(width, height)
            scan.insert_obj(picture)
            scan.set_rotation(90 * quarters)
            scan.gen_content()
        buffer = io.BytesIO()
        made.save(buffer)
    return buffer.getvalue()


def convert_scan(data: bytes, pages: PageRange | None = None) -> Document:
    return convert(SourceFile(data, "scan.pdf", pages=pages))


def text_of(document: Document) -> str:
    return " ".join(block.text for block in document.blocks if isinstance(block, Paragraph))


@pytest.mark.usefixtures("no_extra")
def test_without_the_extra_one_page_is_named_with_the_command_that_installs_it() -> None:
    document = convert_scan(make_scan(MANUAL, [CHAPTER]))
    assert document.warnings == (
        "Page 1 is a picture of text and was not read; give a searchable file, "
        "or install recognition: scripts/setup --extra ocr.",
    )
    assert [page.scanned for page in document.pages] == [True]
    assert not document.blocks


@pytest.mark.usefixtures("no_extra")
def test_without_the_extra_several_pages_are_named_together() -> None:
    (warning,) = convert_scan(make_scan(MANUAL, [0, CHAPTER, 4])).warnings
    assert warning.startswith("Pages 1–3 are pictures of text and were not read;")


@pytest.mark.usefixtures("no_extra")
def test_only_the_pages_that_are_asked_for_are_named() -> None:
    (warning,) = convert_scan(make_scan(MANUAL, [0, CHAPTER, 4]), PageRange(2, 2)).warnings
    assert warning.startswith("Page 2 is a picture of text and was not read;")


def test_pages_with_text_are_left_alone() -> None:
    document = convert_scan(MANUAL)
    assert not document.warnings
    assert not any(page.scanned for page in document.pages)


def test_the_extra_is_not_loaded_for_pages_with_text() -> None:
    told: list[str] = []
    with pdfium.PdfDocument(MANUAL) as document:
        reader = PageRecognizer(document, range(8), lambda _done, _total, message: told.append(message))
        for place in range(8):
            reader.read(read_page(document, place, tagged=False))
    assert told == []
    assert list(reader.list_warnings()) == []


@pytest.mark.parametrize(
    ("numbers", "named"),
    [([3], "Page 3 is"), ([3, 4, 5], "Pages 3–5 are"), ([1, 3, 4, 9], "Pages 1, 3–4, 9 are")],
)
def test_pages_are_named_in_runs(numbers: list[int], named: str) -> None:
    assert format_pages(numbers) == named


@needs_extra
def test_the_words_of_a_scanned_page_are_recognised_and_become_paragraphs() -> None:
    document = convert_scan(make_scan(MANUAL, [CHAPTER]))
    assert "The keeper lights the lantern at dusk." in text_of(document)
    assert "A second paragraph starts with an indented line" in text_of(document)
    assert [page.scanned for page in document.pages] == [True]
    assert document.warnings == ("Page 1 is a picture of text; its text was recognised and may hold errors.",)


@needs_extra
def test_recognised_words_stand_where_the_printed_ones_do() -> None:
    printed = _words(_page(MANUAL, CHAPTER))
    with pdfium.PdfDocument(make_scan(MANUAL, [CHAPTER])) as document:
        page = read_page(document, 0, tagged=False)
        PageRecognizer(document, range(1), lambda *_: None).read(page)
    for text in ("keeper", "paragraph", "indented"):
        found, expected = _words(page)[text], printed[text]
        assert found.left == pytest.approx(expected.left, abs=4)
        assert found.right == pytest.approx(expected.right, abs=4)
        assert found.base == pytest.approx(expected.base, abs=2)
        assert found.size == pytest.approx(expected.size, rel=0.2)


@needs_extra
def test_scanned_columns_are_read_one_after_the_other() -> None:
    text = text_of(convert_scan(make_scan((FILES / "columns.pdf").read_bytes(), [0])))
    places = [text.index(f"{remark} says this") for remark in ("Remark 2", "Remark 5", "Notice 1", "Notice 4")]
    assert places == sorted(places)


@needs_extra
def test_a_scan_that_the_page_turns_upright_is_read_as_it_is_seen() -> None:
    document = convert_scan(make_scan(MANUAL, [CHAPTER], quarters=1))
    assert "The keeper lights the lantern at dusk." in text_of(document)
    page = document.pages[0]
    assert page.width < page.height


@needs_extra
def test_a_picture_without_text_is_told_as_such() -> None:
    (warning,) = convert_scan(make_scan(pdf([""]), [0])).warnings
    assert warning == "Page 1 is a picture in which no text was found."


@needs_extra
def test_pages_for_which_there_is_no_time_are_named() -> None:
    with pdfium.PdfDocument(make_scan(MANUAL, [CHAPTER])) as document:
        page = read_page(document, 0, tagged=False)
        reader = PageRecognizer(document, range(1), lambda *_: None, seconds=0)
        reader.read(page)
    assert page.scanned
    assert not page.words
    assert list(reader.list_warnings()) == [
        "Page 1 is a picture of text and was not read, since recognising it would have taken too long; "
        "ask for it by page number."
    ]


@needs_extra
def test_when_recognition_fails_the_other_pages_are_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ocr._load_engine.cache_clear()
    monkeypatch.setattr(import_module("rapidocr"), "__file__", str(tmp_path / "__init__.py"))
    document = convert_scan(make_scan(MANUAL, [CHAPTER, 4]))
    assert document.warnings == (
        "Pages 1–2 are pictures of text and were not read, since recognition failed (FileNotFoundError); "
        "give a searchable file.",
    )
    assert len(document.pages) == 2


@needs_extra
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.anyio
async def test_a_scan_is_recognised_behind_all_walls_and_within_the_memory_of_a_worker(tmp_path: Path) -> None:
    scan, output = tmp_path / "scan.pdf", tmp_path / "scan.md"
    scan.write_bytes(make_scan(MANUAL, [CHAPTER]))
    job = {"do": "convert_and_export", "to": "markdown", "name": "scan.pdf"}
    with scan.open("rb") as source, output.open("wb") as sink:
        async with open_sandbox(SandboxLimits(workers=1)) as sandbox:
            facts = await sandbox.run(job, source=source.fileno(), output=sink.fileno(), seconds=600)
    assert facts["warnings"] == ["Page 1 is a picture of text; its text was recognised and may hold errors."]
    assert "The keeper lights the lantern at dusk." in output.read_text()


def _page(data: bytes, place: int) -> PageContent:
    with pdfium.PdfDocument(data) as document:
        return read_page(document, place, tagged=False)


def _words(page: PageContent) -> dict[str, Word]:
    return {word.text: word for word in reversed(page.words)}
