from __future__ import annotations

import codecs

import pytest

from refdesk.documents.convert.source import decode


@pytest.mark.parametrize(
    "data",
    [
        "grün".encode(),
        codecs.BOM_UTF8 + "grün".encode(),
        "grün".encode("utf-16"),
        codecs.BOM_UTF16_BE + "grün".encode("utf-16-be"),
        "grün".encode("utf-32"),
        "grün".encode("utf-16-le"),
    ],
)
def test_a_text_in_any_unicode_encoding_is_read_without_a_warning(data: bytes) -> None:
    decoded = decode(data)
    assert decoded.text == "grün"
    assert decoded.warnings == ()


def test_a_mark_goes_before_what_is_stated() -> None:
    assert decode(codecs.BOM_UTF8 + "ü".encode(), "latin-1").text == "ü"


def test_a_stated_encoding_is_read_as_browsers_do() -> None:
    assert decode(b"\x93quoted\x94", "iso-8859-1").text == "“quoted”"


@pytest.mark.parametrize("stated", ["hex", "punycode", "no-such", "utf-8\0", "zlib", "ünknown"])
def test_what_is_no_encoding_of_text_is_not_heeded(stated: str) -> None:
    assert decode(b"6162", stated).text == "6162"


def test_a_few_broken_bytes_do_not_change_the_encoding_of_a_text() -> None:
    decoded = decode("grün und schön\xff".encode().replace("ÿ".encode(), b"\xff"))
    assert decoded.text == "grün und schön\ufffd"
    assert len(decoded.warnings) == 1


def test_a_text_of_old_windows_is_guessed_with_a_warning() -> None:
    decoded = decode("grün, schön".encode("cp1252"))
    assert decoded.text == "grün, schön"
    assert "Windows-1252" in decoded.warnings[0]


def test_nul_characters_are_dropped() -> None:
    assert decode(b"a\0bcdefghijklm").text == "abcdefghijklm"
