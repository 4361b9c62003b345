"""One version, everywhere: src/refdesk/version.py has it, and what cannot read it there agrees."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from refdesk.version import __version__
from tests.packaging.programs import ROOT
from tests.processes import Ended, environment, run

pytestmark = pytest.mark.anyio

PLACES = (
    "Dockerfile",
    "deploy/kubernetes/base/kustomization.yaml",
    "plugins/claude-code/.claude-plugin/plugin.json",
    ".claude-plugin/marketplace.json",
    "gemini-extension.json",
)


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_label_of_the_image_has_it() -> None:
    assert re.findall(r"(?m)^ARG VERSION=(.+)$", read("Dockerfile")) == [__version__]
    assert 'org.opencontainers.image.version="${VERSION}"' in read("Dockerfile")


def test_the_manifests_for_kubernetes_have_it() -> None:
    base = yaml.safe_load(read("deploy/kubernetes/base/kustomization.yaml"))
    assert [image["newTag"] for image in base["images"]] == [__version__]
    labels = {name: value for entry in base["labels"] for name, value in entry["pairs"].items()}
    assert labels["app.kubernetes.io/version"] == __version__


def test_the_plugins_have_it() -> None:
    assert json.loads(read("plugins/claude-code/.claude-plugin/plugin.json"))["version"] == __version__
    assert [plugin["version"] for plugin in json.loads(read(".claude-plugin/marketplace.json"))["plugins"]] == [
        __version__
    ]
    assert json.loads(read("gemini-extension.json"))["version"] == __version__


def test_the_changelog_begins_with_it() -> None:
    assert re.findall(r"(?m)^## (\S+)", read("CHANGELOG.md"))[0] == __version__


def checkout(folder: Path, version: str) -> Path:
    """As much of the repository as the script looks at, with another version."""
    for name in ("scripts/version", "src/refdesk/version.py", *PLACES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "src/refdesk/version.py").write_text(f'__version__ = "{version}"\n')
    return folder


async def version_script(folder: Path, *arguments: str) -> Ended:
    return await run(sys.executable, "scripts/version", *arguments, cwd=folder, env=environment(folder))


async def test_the_script_names_every_file_that_is_behind(tmp_path: Path) -> None:
    told = await version_script(checkout(tmp_path, "7.8.9"), "--check")
    assert told.code == 1
    assert all(name in told.err for name in PLACES)


async def test_the_script_brings_every_file_up_to_date_and_changes_nothing_else(tmp_path: Path) -> None:
    folder = checkout(tmp_path, "7.8.9")
    assert (await version_script(folder)).code == 0
    assert (await version_script(folder, "--check")).code == 0
    for name in PLACES:
        assert (folder / name).read_text("utf-8").replace("7.8.9", __version__) == read(name)
