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


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "База данных копируется каждую ночь. Восстановить её можно командой restore."),
        ("cp1251", "Имя;Город\nИванов;Москва\nПетров;Казань\n"),
        ("cp1251", "Счёт № 5"),
        ("koi8_r", "База данных копируется каждую ночь в три часа."),
        ("cp866", "База данных копируется каждую ночь в три часа."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy."),
        ("cp1253", "Η βάση δεδομένων αντιγράφεται κάθε νύχτα στις τρεις."),
        ("cp1256", "يتم نسخ قاعدة البيانات احتياطيا كل ليلة."),
        ("cp932", "データベースのバックアップは毎晩三時に実行されます。"),
        ("gb18030", "数据库每天晚上三点备份。恢复时请使用命令。"),
        ("cp949", "데이터베이스는 매일 밤 세 시에 백업됩니다."),
        ("cp1252", "El señor comió rápidamente; ¿qué pasó después?"),
        ("cp1252", "Preis: 100 €"),
        ("cp1252", "It’s a “quoted” text – with dashes…"),
    ],
)
def test_a_text_in_an_old_encoding_is_read_in_it_with_a_warning(encoding: str, text: str) -> None:
    ascii_lines = "# An introduction in English\n" * 5_000
    for more in ("", ascii_lines):
        decoded = decode((more + text).encode(encoding))
        assert decoded.text == more + text
        assert "no encoding is stated" in decoded.warnings[0]


def test_a_long_text_is_judged_by_its_beginning() -> None:
    for encoding, text in (
        ("cp1251", "База данных копируется каждую ночь. "),
        ("gb18030", "数据库每天晚上三点备份。\n"),
    ):
        decoded = decode((text * 20_000).encode(encoding))
        assert decoded.text.count(text) == 20_000


def test_nul_characters_are_dropped() -> None:
    assert decode(b"a\0bcdefghijklm").text == "abcdefghijklm"
