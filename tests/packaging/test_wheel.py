"""The wheel: what is in it, what is not, and what it says of itself."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from anyio import Path as AsyncPath

from refdesk.version import __version__
from tests.packaging.programs import ROOT, has_passed

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LARGEST = 40_000_000
"""Bytes. The model has 22 million of them; a wheel that is much larger has swallowed something."""

MODEL = "refdesk/engines/embedded/embedding/minilm"


@pytest.fixture
def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"refdesk-{__version__}.dist-info/METADATA"))


async def test_every_file_of_the_package_is_in_it(names: set[str]) -> None:
    package = ROOT / "src"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {path.relative_to(package).as_posix() for path in files} <= names


async def test_the_manual_is_in_it(names: set[str]) -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages
    assert {f"refdesk/manual_pages/{page}" for page in pages} <= names


async def test_nothing_is_in_it_that_only_developers_need(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert tops == {"refdesk", f"refdesk-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".map", ".ts"))]
    assert not [name for name in names if "/tests/" in name or "/." in name]


async def test_the_model_has_its_licence_and_says_what_was_changed(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        assert "Apache License" in archive.read(f"{MODEL}/LICENSE").decode()
        said = archive.read(f"{MODEL}/README").decode()
    assert "sentence-transformers" in said
    assert "Changed by Refdesk" in said


async def test_libraries_of_the_console_have_their_licences_beside_them(names: set[str]) -> None:
    vendored = {name.rpartition("/")[0] for name in names if "/vendor/" in name}
    without = [folder for folder in vendored if not any(name.startswith(f"{folder}/LICENSE") for name in names)]
    assert without == []


async def test_it_has_our_licence_is_typed_and_offers_one_command(wheel: Path, names: set[str]) -> None:
    folder = f"refdesk-{__version__}.dist-info"
    assert {"refdesk/py.typed", f"{folder}/licenses/LICENSE"} <= names
    with ZipFile(wheel) as archive:
        assert archive.read(f"{folder}/entry_points.txt").decode().split("\n")[:2] == [
            "[console_scripts]",
            "refdesk = refdesk.cli:main",
        ]


async def test_it_is_not_larger_than_its_model_explains(wheel: Path) -> None:
    assert len(await AsyncPath(wheel).read_bytes()) < LARGEST


async def test_its_version_is_ours_and_its_licence_is_said_in_spdx(wheel: Path, metadata: Message) -> None:
    assert wheel.name == f"refdesk-{__version__}-py3-none-any.whl"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"


async def test_an_index_of_packages_would_take_it(wheel: Path, programs: Path, tmp_path: Path) -> None:
    said = await has_passed(programs / "twine", "--no-color", "check", "--strict", wheel, home=tmp_path)
    assert "PASSED" in said
