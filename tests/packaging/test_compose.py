"""compose.yaml: every profile is what it says, no secret is in it, and Compose itself can read it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # it has no types

from refdesk.config.loading import load
from tests.packaging.programs import ROOT, has_passed
from tests.processes import Ended, environment, run

pytestmark = pytest.mark.anyio

SOURCE = (ROOT / "compose.yaml").read_text("utf-8")
EXAMPLE = ROOT / "deploy" / "docker" / "example.env"
PROFILES = {
    "": {"refdesk"},
    "redis": {"refdesk", "redis"},
    "r2r": {"refdesk", "r2r"},
    "postgres": {"refdesk", "postgres"},
    "redis,r2r,postgres": {"refdesk", "redis", "r2r", "postgres"},
}
CHOSEN = {
    "COMPOSE_PROFILES": "redis,r2r,postgres",
    "REFDESK_CACHE": "redis",
    "MCP_API_KEY": "0123456789abcdef0123456789abcdef",
    "R2R_API_URL": "http://r2r:7272",
    "R2R_SERVICE_EMAIL": "refdesk@example.com",
    "R2R_SERVICE_PASSWORD": "of-the-account",
    "POSTGRES_PASSWORD": "of-the-database",
}


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SOURCE)["services"]
    return found


async def compose(home: Path, *arguments: str, **more: str) -> Ended:
    """Docker Compose, which needs no daemon to read a file."""
    env = environment(home, **more)
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and (await run(*command, "version", cwd=home, env=env)).code == 0:
            files = ("--env-file", str(EXAMPLE), "--file", str(ROOT / "compose.yaml"))
            return await run(*command, *files, *arguments, cwd=home, env=env)
    pytest.skip("Docker Compose is not installed")


@pytest.mark.slow
async def test_it_is_what_the_specification_of_compose_says(programs: Path) -> None:
    (schema,) = programs.parent.glob(
        "lib/python*/site-packages/check_jsonschema/builtin_schemas/vendor/compose-spec.json"
    )
    validator = Draft7Validator(json.loads(schema.read_text("utf-8")))
    assert [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(yaml.safe_load(SOURCE))] == []


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_profile_starts_what_its_name_says(profile: str, tmp_path: Path) -> None:
    told = await compose(tmp_path, "config", "--services", COMPOSE_PROFILES=profile)
    assert told.code == 0, told.err
    assert set(told.out.split()) == PROFILES[profile]
    assert told.err == ""


def test_the_profiles_are_those_that_the_pages_name(services: dict[str, Any]) -> None:
    assert {name: service.get("profiles", []) for name, service in services.items()} == {
        "refdesk": [],
        "redis": ["redis"],
        "r2r": ["r2r"],
        "postgres": ["postgres"],
    }


@pytest.mark.slow
async def test_what_the_desk_is_told_is_a_configuration_that_it_takes(programs: Path, tmp_path: Path) -> None:
    """With variables filled in by a second reader of the file, alone and with everything beside it."""
    alone = load(None, await _told(programs, tmp_path, {"MCP_API_KEY": CHOSEN["MCP_API_KEY"]}))
    assert (alone.cache.type, alone.r2r.api_url) == ("memory", None)
    whole = load(None, await _told(programs, tmp_path, CHOSEN))
    assert (whole.cache.type, whole.rate_limits.type) == ("redis", "redis")
    assert str(whole.r2r.api_url).rstrip("/") == CHOSEN["R2R_API_URL"]


async def _told(programs: Path, home: Path, chosen: dict[str, str]) -> dict[str, str]:
    """The environment of the desk's container, less what the image itself sets."""
    (home / ".env").write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    # podman-compose asks podman for its version before it reads the file, and for nothing else.
    podman = home / "podman"
    podman.write_text("#!/bin/sh\necho podman version 5.0.0\n")
    podman.chmod(0o755)
    files = ("--env-file", home / ".env", "--file", ROOT / "compose.yaml")
    command = ("--podman-path", podman, *files, "config")
    told = await has_passed(programs / "podman-compose", *command, home=home)
    environ: dict[str, str] = yaml.safe_load(told)["services"]["refdesk"]["environment"]
    return {name: value for name, value in environ.items() if value}


def test_no_secret_is_in_it_and_the_example_has_none() -> None:
    secret = r"(?m)^\s*#?\s*(\w*(?:KEY|PASSWORD|SECRET)\w*)\s*[:=][ \t]*(\S*)"
    given = dict(re.findall(secret, SOURCE))
    assert given
    assert [value for value in given.values() if not re.fullmatch(r"\$\{\w+:-\}", value)] == []
    assert [value for _, value in re.findall(secret, EXAMPLE.read_text("utf-8")) if value] == []


def test_every_variable_of_the_example_is_read(services: dict[str, Any]) -> None:
    offered = set(re.findall(r"(?m)^#?([A-Z][A-Z0-9_]+)=", EXAMPLE.read_text("utf-8")))
    read = set(re.findall(r"\$\{(\w+)", SOURCE)) | {"COMPOSE_PROFILES"}
    assert offered <= read


def test_the_desk_is_walled_in_and_reached_from_this_machine_only(services: dict[str, Any]) -> None:
    desk = services["refdesk"]
    assert desk["read_only"] is True
    assert desk["cap_drop"] == ["ALL"]
    assert desk["security_opt"] == ["no-new-privileges:true"]
    assert desk["ports"] == ["${REFDESK_LISTEN:-127.0.0.1:8001}:8001"]
    assert [name for name, service in services.items() if "ports" in service] == ["refdesk"]


def test_everything_beside_the_desk_says_when_it_is_well(services: dict[str, Any]) -> None:
    """The desk's own check is in its image."""
    assert [name for name, service in services.items() if "healthcheck" not in service] == ["refdesk"]
