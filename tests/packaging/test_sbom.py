"""The bill of materials: every locked package that a user can install, with its version and, where known, licence."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from refdesk.version import __version__
from tests.clients.npm import Unavailable
from tests.packaging.programs import ROOT, has_passed, uv
from tests.processes import environment, run

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VALIDATE = """
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tests.waiting import PATIENCE_SECONDS
bill = json.load(open(sys.argv[1]))
kept = [part | {"externalReferences": part.get("externalReferences", [])[:1]} for part in bill["components"][-8:]]
bill |= {"components": kept, "dependencies": bill["dependencies"][-8:]}
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill))
sys.exit(str(error) if error else 0)
"""
"""The last parts only, and one file of each: all are alike, and the whole would take half a minute of computing."""


@pytest.fixture(scope="module")
async def bill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the script makes it, with licences from the environment of the tests."""
    path = tmp_path_factory.mktemp("sbom") / "refdesk.cdx.json"
    command = ("scripts/sbom", "--environment", sys.prefix, "--output", path)
    try:
        env = environment(Path.home(), UV=str(uv()))
    except Unavailable as why:
        pytest.skip(str(why))
    ended = await run(sys.executable, *command, cwd=ROOT, env=env)
    assert ended.code == 0, ended.err
    return path


def content(bill: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(bill.read_text("utf-8"))
    return read


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parts_of(bill: Path) -> dict[tuple[str, str], Any]:
    return {(part["name"], part.get("version", "")): part for part in content(bill)["components"]}


def locked() -> set[tuple[str, str]]:
    """Names and versions of what the lock file has for the package and all its extras, and what these need."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
    (own,) = (package for package in packages if package["name"] == "refdesk")
    reached: set[str] = set()
    waiting = [*own["dependencies"], *(need for needs in own["optional-dependencies"].values() for need in needs)]
    while waiting:
        need = waiting.pop()
        for package in (package for package in packages if package["name"] == need["name"]):
            wanted = [*package.get("dependencies", [])] if package["name"] not in reached else []
            wanted += [more for extra in need.get("extra", []) for more in package["optional-dependencies"][extra]]
            waiting += [more for more in wanted if more["name"] not in reached or more.get("extra")]
        reached.add(need["name"])
    return {(package["name"], package["version"]) for package in packages if package["name"] in reached}


async def test_it_names_every_locked_package_and_nothing_for_developers(bill: Path) -> None:
    named = {part for part in parts_of(bill) if part[1]}
    assert named == locked()
    assert "pytest" not in {name for name, _ in named}


async def test_every_package_has_its_hashes_and_an_address_by_which_tools_know_it(bill: Path) -> None:
    for (name, version), part in parts_of(bill).items():
        if version:
            assert part["purl"].startswith(f"pkg:pypi/{name}@{version}")
            assert all(file["hashes"] for file in part["externalReferences"])


async def test_every_package_that_is_installed_here_has_a_licence(bill: Path) -> None:
    without = {name for (name, _), part in parts_of(bill).items() if not part.get("licenses")}
    installed = {normal(each.metadata["Name"]) for each in distributions()}
    assert without & installed == set()
    assert "mcp" in installed


async def test_it_is_of_this_version_and_names_the_model_that_travels_inside(bill: Path) -> None:
    own = content(bill)["metadata"]["component"]
    assert (own["name"], own["version"]) == ("refdesk", __version__)
    assert parts_of(bill)["all-MiniLM-L6-v2", ""]["licenses"] == [{"license": {"id": "Apache-2.0"}}]


async def test_it_is_valid_cyclonedx(bill: Path, programs: Path, tmp_path: Path) -> None:
    await has_passed(programs / "python", "-c", VALIDATE, bill, home=tmp_path)
