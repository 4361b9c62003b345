"""Archives of strangers: their pages, and nothing that leads out of them or never ends."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from io import BytesIO

import pytest

from refdesk.errors import CannotConvert
from refdesk.ingest.recipes.pages import read_archive
from tests.ingest.recipes.sites import tar_of, zip_of

FILES = {"set-1.0/docs/a.html": "A", "set-1.0/docs/deep/b.html": "B", "set-1.0/README": "C"}
PACKINGS: list[Callable[[bytes], bytes]] = [gzip.compress, bz2.compress, lzma.compress]


def pages(data: bytes, folder: str = "docs", **bounds: int) -> dict[str, bytes]:
    return dict(read_archive(BytesIO(data), folder, **bounds))


@pytest.mark.parametrize("pack", PACKINGS)
def test_the_pages_of_a_tar_archive_are_those_below_its_folder(pack: Callable[[bytes], bytes]) -> None:
    assert pages(pack(tar_of(FILES))) == {"a.html": b"A", "deep/b.html": b"B"}


def test_a_zip_archive_is_read_alike() -> None:
    assert pages(zip_of(FILES)) == {"a.html": b"A", "deep/b.html": b"B"}


def test_the_folder_may_stand_at_the_top() -> None:
    assert pages(zip_of({"docs/a.html": "A"})) == {"a.html": b"A"}


@pytest.mark.parametrize("name", ["set/docs/../../../etc/passwd.html", "/etc/passwd.html", "set\\docs\\..\\x.html"])
def test_a_name_that_leads_out_spoils_the_whole_archive(name: str) -> None:
    with pytest.raises(CannotConvert, match="leads outside"):
        pages(gzip.compress(tar_of({**FILES, name: "x"})))
    with pytest.raises(CannotConvert, match="leads outside"):
        pages(zip_of({**FILES, name: "x"}))


def test_links_in_an_archive_are_not_followed() -> None:
    link = tarfile.TarInfo("set-1.0/docs/shadow.html")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
    hard = tarfile.TarInfo("set-1.0/docs/hard.html")
    hard.type, hard.linkname = tarfile.LNKTYPE, "set-1.0/README"
    assert set(pages(gzip.compress(tar_of(FILES, link, hard)))) == {"a.html", "deep/b.html"}


@pytest.mark.parametrize("pack", PACKINGS)
def test_what_unpacks_to_too_much_is_given_up_wherever_in_the_archive_it_is(pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(tar_of({"set-1.0/elsewhere/zeroes": bytes(3_000_000), **FILES}))
    with pytest.raises(CannotConvert, match="is too large"):
        pages(bomb, max_bytes=1_000_000)


def test_a_zip_archive_that_claims_too_much_is_not_unpacked() -> None:
    with pytest.raises(CannotConvert, match="is too large"):
        pages(zip_of({"docs/a.html": "0" * 2_000_000}), max_bytes=1_000_000)


def test_an_archive_of_countless_files_is_given_up() -> None:
    many = dict.fromkeys((f"docs/{number}.html" for number in range(11)), "")
    assert len(pages(gzip.compress(tar_of(many)), max_files=11)) == 11
    with pytest.raises(CannotConvert, match="more than 10 files"):
        pages(gzip.compress(tar_of(many)), max_files=10)


@pytest.mark.parametrize("pack", PACKINGS)
def test_an_archive_that_is_cut_off_is_told(pack: Callable[[bytes], bytes]) -> None:
    whole = pack(tar_of({**FILES, "set-1.0/docs/noise.html": bytes(range(256)) * 4000}))
    with pytest.raises(CannotConvert, match="incomplete or broken"):
        pages(whole[: len(whole) // 2])
