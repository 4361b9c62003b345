from __future__ import annotations

import struct
import zipfile
from io import BytesIO

import pytest

from refdesk.documents.convert.formats import detect_kind
from refdesk.documents.convert.ooxml import MAX_ENTRIES, open_package
from refdesk.errors import CannotConvert
from tests.documents.convert.office import FILES, ooxml, pack_zip, word


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("guide.docx", "docx"),
        ("guide-libreoffice.docx", "docx"),
        ("guide.odt", "odt"),
        ("guide.epub", "epub"),
        ("guide.doc", "doc"),
        ("deck.pptx", "pptx"),
        ("deck.odp", "odp"),
        ("book.xlsx", "xlsx"),
        ("book.ods", "ods"),
        ("book.xls", "xls"),
        ("guide.rtf", "rtf"),
        ("guide.md", None),
    ],
)
def test_a_file_is_known_by_its_content(name: str, kind: str | None) -> None:
    assert detect_kind((FILES / name).read_bytes()) == kind


def test_a_zip_that_is_no_office_file_is_of_no_kind() -> None:
    assert detect_kind(pack_zip({"notes.txt": "hello"})) is None


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/vnd.ms-word.document.macroEnabled.main+xml", "docx"),
        ("application/vnd.ms-excel.sheet.macroEnabled.main+xml", "xlsx"),
        ("application/vnd.openxmlformats-officedocument.presentationml.slideshow.main+xml", "pptx"),
        ("application/vnd.ms-excel.sheet.binary.macroEnabled.main", None),
    ],
)
def test_templates_and_files_with_macros_are_of_their_kind(content_type: str, kind: str | None) -> None:
    assert detect_kind(pack_zip({"[Content_Types].xml": f'<Override ContentType="{content_type}"/>'})) == kind


@pytest.mark.parametrize("name", ["guide.docx", "guide.doc", "book.xls"])
def test_a_truncated_file_is_said_to_be_broken(name: str) -> None:
    data = (FILES / name).read_bytes()
    with pytest.raises(CannotConvert, match="broken or incomplete"):
        detect_kind(data[: len(data) // 4])


def test_a_locked_document_asks_for_one_without_a_password() -> None:
    with pytest.raises(CannotConvert, match="password"):
        detect_kind(_compound_file("EncryptedPackage"))


def test_encrypted_entries_ask_for_a_file_without_a_password() -> None:
    data = bytearray(pack_zip({"a": "b"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(CannotConvert, match="password"):
        open_package(bytes(data))


def test_a_package_of_too_many_parts_is_refused() -> None:
    with pytest.raises(CannotConvert, match="more than 10000 parts"):
        open_package(pack_zip({str(number): "" for number in range(MAX_ENTRIES + 1)}))


def test_a_bomb_is_refused_by_what_it_claims_to_hold() -> None:
    with pytest.raises(CannotConvert, match="would unpack to 30 MB"):
        open_package(pack_zip({"word/document.xml": " " * 30_000_000}))


def test_a_small_file_may_shrink_as_much_as_it_likes() -> None:
    assert open_package(pack_zip({"a": " " * 1_000_000})).read_head("a") == b" " * 1_000_000


def test_entries_that_lie_over_one_another_are_refused() -> None:
    with pytest.raises(CannotConvert, match="lie over one another"):
        open_package(_overlapping())


def test_a_part_that_declares_a_dtd_is_refused() -> None:
    package = open_package(pack_zip({"a.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}))
    with pytest.raises(CannotConvert, match="declares a DTD"):
        package.read_xml("a.xml")


def test_a_dtd_is_seen_in_other_encodings_too() -> None:
    package = open_package(
        pack_zip({"a.xml": '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a><a/>'.encode("utf-16")})
    )
    with pytest.raises(CannotConvert, match="declares a DTD"):
        package.read_xml("a.xml")


def test_xml_that_is_not_well_formed_is_named() -> None:
    with pytest.raises(CannotConvert, match=r"'a\.xml' is not well-formed"):
        open_package(pack_zip({"a.xml": "<a>"})).read_xml("a.xml")


def test_a_damaged_part_is_said_to_be_broken() -> None:
    data = bytearray(pack_zip({"a.xml": "<a>" + "some words " * 50 + "</a>"}))
    data[40:50] = b"\xff" * 10
    with pytest.raises(CannotConvert, match="broken"):
        open_package(bytes(data)).read_xml("a.xml")


def test_a_part_that_is_not_what_the_archive_says_of_it_is_said_to_be_broken() -> None:
    whole = pack_zip({"a.xml": "<a>some words</a>"})
    entry = whole.index(b"PK\x01\x02")
    for at in (16, 24):  # its checksum, and its size
        data = bytearray(whole)
        data[entry + at] ^= 1
        with pytest.raises(CannotConvert, match="broken"):
            open_package(bytes(data)).read_xml("a.xml")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_parts_are_read_however_they_are_packed(method: int) -> None:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        archive.writestr("a.xml", "<a>some words</a>")
    package = open_package(data.getvalue())
    assert package.read("a.xml") == b"<a>some words</a>"
    assert package.read("b.xml") == b""


def test_strict_files_are_read_like_the_usual_ones() -> None:
    strict = '<w:document xmlns:w="http://purl.oclc.org/ooxml/wordprocessingml/main"/>'
    root = open_package(pack_zip({"a.xml": strict})).read_xml("a.xml")
    assert root is not None
    assert root.tag == "{w}document"


def test_names_that_climb_out_of_the_package_lead_nowhere() -> None:
    package = open_package(ooxml("docx", {"../../etc/passwd": "x", "word/document.xml": "<a/>"}))
    assert package.read_xml("etc/passwd") is None
    assert package.find_main_part("") == "word/document.xml"


def test_macros_are_noticed() -> None:
    assert list(open_package(pack_zip({"word/vbaProject.bin": "x"})).warn_macros())
    assert not list(open_package(word("").data).warn_macros())


def _compound_file(stream: str) -> bytes:
    """A compound file with nothing but one empty stream: header, allocation table, directory."""
    header = bytearray(512)
    header[:8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    struct.pack_into("<H", header, 30, 9)
    struct.pack_into("<I", header, 48, 1)
    struct.pack_into("<109I", header, 76, 0, *[0xFFFFFFFF] * 108)
    table = struct.pack("<128I", 0xFFFFFFFD, 0xFFFFFFFE, *[0xFFFFFFFF] * 126)
    none = 0xFFFFFFFF
    directory = _entry("Root Entry", none, 1) + _entry(stream, none, none)
    return bytes(header) + table + directory.ljust(512, b"\0")


def _entry(name: str, sibling: int, child: int) -> bytes:
    encoded = name.encode("utf-16-le")
    return encoded.ljust(64, b"\0") + struct.pack("<H2xIII", len(encoded) + 2, sibling, sibling, child) + bytes(48)


def _overlapping() -> bytes:
    """An archive whose second entry is listed as if it began inside of the first."""
    pack_zip = BytesIO()
    with zipfile.ZipFile(pack_zip, "w") as archive:
        archive.writestr("a", "x" * 100)
        archive.writestr("b", "y" * 100)
    data = bytearray(pack_zip.getvalue())
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    struct.pack_into("<I", data, second + 42, 10)
    return bytes(data)
