"""What a file is, by its bytes."""

from __future__ import annotations

import pytest

from refdesk.documents.convert.formats import (
    BY_MEDIA_TYPE,
    BY_SUFFIX,
    FORMATS,
    describe_wrong_format,
    detect_format,
    is_detectable_by_content,
)
from refdesk.errors import CannotConvert
from tests.real_files import REAL_FILES, RealFile


@pytest.mark.parametrize("real", [r for r in REAL_FILES if r.path.suffix != ".csv"], ids=lambda real: real.path.name)
def test_content_tells_without_a_name(real: RealFile) -> None:
    data = real.path.read_bytes()
    named = detect_format(data, real.path.name).key
    if is_detectable_by_content(data[:1024]) or named in ("html", "rst", "markdown"):
        assert detect_format(data, "x").key == named
    assert real.path.suffix in FORMATS[named].suffixes


@pytest.mark.parametrize(
    ("data", "name", "media_type", "key"),
    [
        (b"%PDF-1.7", "x.txt", "", "pdf"),
        (b"junk\n%PDF-1.7", "x.bin", "", "pdf"),
        (b"A file begins with %PDF-1.7", "x.md", "", "markdown"),
        (b"  <!DOCTYPE HTML><p>x", "x.md", "", "html"),
        (b'<?xml version="1.0"?><!-- c --><html>', "x", "", "html"),
        (b"plain words", "x", "text/html", "html"),
        (b"a,b\n1,2", "x", "text/csv; charset=utf-8".partition(";")[0], "csv"),
        (b"a\tb", "x.tsv", "", "csv"),
        (b'{"schema_name": "DoclingDocument"}', "x.json", "", "docling"),
        (b'{"a": 1}', "x.json", "", "text"),
        (b"print(1)", "x.py", "", "text"),
        (b"plain words", "library/os.rst.txt", "", "rst"),
        (b"plain words", "index.MD.txt", "", "markdown"),
        (b"plain words", "v1.2.txt", "", "text"),
        (b"\xff\xfea\0b\0", "x.txt", "", "text"),
        (b"{\\rtf1 x}", "x.doc", "", "rtf"),
    ],
)
def test_a_format_is_found(data: bytes, name: str, media_type: str, key: str) -> None:
    assert detect_format(data, name, media_type).key == key


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0", b"MZ\0\0", bytes(range(256)), b"PK\x05\x06" + bytes(18)])
def test_what_is_no_document_is_told_what_would_be(data: bytes) -> None:
    with pytest.raises(CannotConvert, match=r"PDF, Word|broken|empty"):
        detect_format(data, "x.bin")


@pytest.mark.parametrize("data", [b"", b" \n\0\0"])
def test_an_empty_file_is_told_so(data: bytes) -> None:
    with pytest.raises(CannotConvert, match="empty"):
        detect_format(data, "x.pdf")


def test_no_suffix_or_media_type_belongs_to_two_formats() -> None:
    formats = FORMATS.values()
    assert len(BY_SUFFIX) == sum(len(format.suffixes) for format in formats)
    assert len(BY_MEDIA_TYPE) == sum(1 + len(format.other_media_types) for format in formats)


def test_a_file_of_another_format_is_told_the_tool_for_it() -> None:
    assert describe_wrong_format("x", "csv", ("pdf",)) == "x is a CSV file, not a PDF; call convert_xlsx for it."
