"""What holds for every format."""

from __future__ import annotations

import hashlib
from io import BytesIO

import pypdfium2
import pytest

from refdesk.documents.convert import convert, detect_format
from refdesk.documents.model import Heading, list_sections
from refdesk.errors import CannotConvert
from tests.real_files import REAL_FILES, RealFile


@pytest.mark.parametrize("real", REAL_FILES, ids=lambda real: real.path.name)
def test_a_document_knows_its_file(real: RealFile) -> None:
    data = real.path.read_bytes()
    document = convert(data, real.path.name)
    assert document.name == real.path.name
    assert document.digest == hashlib.sha256(data).hexdigest()
    assert document.media_type == detect_format(data, real.path.name).media_type
    assert document.blocks
    for block in document.blocks:
        assert not isinstance(block, Heading) or 1 <= block.level <= 6
        assert block.place is None or 1 <= block.place.page <= len(document.pages)


def test_a_heading_that_only_says_note_opens_no_section() -> None:
    document = convert(b"# A\n\nText.\n\n### Note:\n\nBeware.\n\n### Notes\n\nMore.\n", "a.md")
    assert [section.id for section in list_sections(document.blocks)] == ["a", "notes"]


def test_a_file_without_a_word_is_told_so() -> None:
    with pypdfium2.PdfDocument.new() as blank:
        blank.new_page(200, 200)
        file = BytesIO()
        blank.save(file)
    with pytest.raises(CannotConvert, match=r"blank\.pdf holds no text"):
        convert(file.getvalue(), "blank.pdf")
