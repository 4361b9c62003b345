"""Names of downloads: recognisable, and harmless whatever the server says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.documents.file_names import MAX_NAME_CHARACTERS, choose_download_name, clean_name


@pytest.mark.parametrize(
    ("disposition", "path", "name"),
    [
        ("", "/a/guide.pdf", "guide.pdf"),
        ("", "/a/My%20Guide.pdf", "My Guide.pdf"),
        ("", "/a/", "index"),
        ("", "/", "index"),
        ("inline", "/a/guide.pdf", "guide.pdf"),
        ('attachment; filename="report.docx"', "/download", "report.docx"),
        ("attachment; filename=report.docx", "/download", "report.docx"),
        ("attachment; filename*=UTF-8''%C3%BCber.pdf", "/d", "über.pdf"),
        ('attachment; filename="../../etc/passwd"', "/d", "passwd"),
        ('attachment; filename="..\\\\..\\\\boot.ini"', "/d", "boot.ini"),
        ("attachment; filename*=UTF-8''..%2F..%2Fa.pdf", "/d", "a.pdf"),
        ("attachment; filename*=UTF-8''a%00b%0D%0A.pdf", "/d", "ab.pdf"),
        ("attachment; filename*=UTF-8''a%E2%80%AEfdp.exe", "/d", "afdp.exe"),
        ("attachment; filename*=undefined''a.pdf", "/d/b.pdf", "b.pdf"),
        ("attachment; filename=..", "/..%2f..%2fx.md", "x.md"),
        ("attachment; filename=.htaccess", "/d", "htaccess"),
        ("", "/%2e%2e%2f", "index"),
        ("", "/a%2Fb%5Cc.md", "c.md"),
    ],
)
def test_a_download_is_named_by_its_server_or_its_path(disposition: str, path: str, name: str) -> None:
    assert choose_download_name(disposition, path) == name


def test_a_long_name_keeps_its_kind() -> None:
    name = clean_name("x" * 500 + ".pdf")
    assert len(name) == MAX_NAME_CHARACTERS
    assert name.endswith("x.pdf")


@given(st.text(), st.text())
def test_no_name_leads_anywhere(announced: str, path: str) -> None:
    for disposition in (announced, f"attachment; filename={announced}", f"attachment; filename*={announced}"):
        name = choose_download_name(disposition.replace("\n", "").replace("\r", ""), path)
        assert 0 < len(name) <= MAX_NAME_CHARACTERS
        assert not set(name) & set("/\\\0\r\n\t")
        assert not name.startswith(".")
        name.encode()
