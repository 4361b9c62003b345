"""The store keeps to its bounds, its tenants apart, and nothing that a crash left behind."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from refdesk.calls import TenantId
from refdesk.documents.conversion_store import HANDLE, STALE_PART_SECONDS, Bounds, Store, UrlRecord
from refdesk.documents.jobs import chunk_and_pack
from refdesk.errors import StorageError
from tests.documents.blocks import EVERY_KIND

ANN, BOB = TenantId("ann"), TenantId("bob")
PACKED = chunk_and_pack(EVERY_KIND)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "converted", Bounds(documents=3, bytes=10_000_000, seconds=10_000))


def put(store: Store, number: int, tenant: TenantId = ANN, content: bytes = PACKED) -> str:
    handle = store.handle(tenant, f"{number:064x}")
    with store.writing() as file:
        file.write(content)
        file.flush()
        store.keep(tenant, handle, file)
    return handle


def is_there(store: Store, handle: str, tenant: TenantId = ANN) -> bool:
    shelf = store.open(tenant, handle)
    if shelf is not None:
        shelf.close()
    return shelf is not None


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def age(folder: Path, handle: str, seconds: float) -> None:
    (path,) = folder.rglob(f"{handle}.sqlite")
    os.utime(path, (time.time() - seconds,) * 2)


def test_only_the_owner_can_read_its_folders(tmp_path: Path) -> None:
    put(Store(tmp_path / "new" / "converted", Bounds(documents=3, bytes=10_000_000, seconds=10_000)), 1)
    folders = [path for path in (tmp_path / "new", *(tmp_path / "new").rglob("*")) if path.is_dir()]
    assert len(folders) == 3
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_a_handle_is_made_of_tenant_bytes_and_way_and_cannot_be_guessed(store: Store) -> None:
    handles = {store.handle(ANN, "d"), store.handle(BOB, "d"), store.handle(ANN, "e"), store.handle(ANN, "d", "1-2")}
    assert len(handles) == 4
    assert all(HANDLE.fullmatch(handle) for handle in handles)
    assert store.handle(ANN, "d") in handles


def test_a_tenant_finds_only_its_own(store: Store) -> None:
    handle = put(store, 1)
    assert is_there(store, handle)
    assert not is_there(store, handle, BOB)


@pytest.mark.parametrize("handle", ["", "../x", "doc-" + "a" * 25, "doc-" + "A" * 26, "doc-" + "a" * 26 + "/..", "\0"])
def test_what_is_no_handle_is_not_looked_for(store: Store, handle: str) -> None:
    assert not is_there(store, handle)


def test_the_oldest_goes_when_there_are_too_many(store: Store, tmp_path: Path) -> None:
    handles = [put(store, number) for number in range(3)]
    for seconds, handle in zip((30, 20, 10), handles, strict=True):
        age(tmp_path, handle, seconds)
    assert is_there(store, handles[0])  # reading makes it young again
    newest = put(store, 9)
    assert [is_there(store, handle) for handle in [*handles, newest]] == [True, False, True, True]


def test_one_tenant_cannot_push_out_another(store: Store) -> None:
    mine = put(store, 1)
    for number in range(10):
        put(store, number, BOB)
    assert is_there(store, mine)


def test_the_oldest_goes_when_they_take_too_much_room(tmp_path: Path) -> None:
    store = Store(tmp_path / "converted", Bounds(documents=100, bytes=int(len(PACKED) * 2.5), seconds=10_000))
    handles = [put(store, number) for number in range(2)]
    age(tmp_path, handles[0], 50)
    put(store, 2)
    assert [is_there(store, handle) for handle in handles] == [False, True]


def test_a_document_expires(store: Store, tmp_path: Path) -> None:
    handle = put(store, 1)
    age(tmp_path, handle, 10_001)
    assert not is_there(store, handle)
    put(store, 2)
    assert len(files(tmp_path)) == 1


def test_nothing_half_written_is_found_or_left(store: Store, tmp_path: Path) -> None:
    with store.writing() as file:
        file.write(b"half")
    assert files(tmp_path) == []
    leftover = tmp_path / "converted" / "crash.part"
    leftover.write_bytes(b"half")
    put(store, 1)
    assert leftover.exists()
    os.utime(leftover, (time.time() - STALE_PART_SECONDS - 1,) * 2)
    put(store, 2)
    assert not leftover.exists()


def test_a_damaged_file_is_as_good_as_none_and_makes_room_for_a_sound_one(store: Store, tmp_path: Path) -> None:
    handle = put(store, 1, content=b"SQLite format 3\0 but no more")
    assert not is_there(store, handle)
    assert files(tmp_path) == []
    put(store, 1)
    assert is_there(store, handle)


@pytest.mark.parametrize("in_the_way", ["converted", "converted/tenant"])
def test_trouble_with_the_disk_is_told_as_such(tmp_path: Path, in_the_way: str) -> None:
    store = Store(tmp_path / "converted", Bounds())
    if in_the_way == "converted":
        (tmp_path / "converted").write_text("a file where the folder should be")
    else:
        put(store, 1)
        (folder,) = (path for path in (tmp_path / "converted").iterdir() if path.is_dir())
        shutil.rmtree(folder)
        folder.write_text("a file where the tenant's folder should be")
    with pytest.raises(StorageError, match="can't be stored in the data folder"):
        put(store, 2)


def test_what_a_url_gave_is_remembered_for_its_tenant(store: Store) -> None:
    record = UrlRecord("doc-" + "a" * 26, '"1"', None)
    store.save_url_record(ANN, "https://example.org/", record)
    assert store.get_url_record(ANN, "https://example.org/") == record
    assert store.get_url_record(BOB, "https://example.org/") is None
    assert store.get_url_record(ANN, "https://example.org/other") is None
