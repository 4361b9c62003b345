"""Keys made, listed and revoked while the desk runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refdesk.config.models import ApiKey
from refdesk.errors import InvalidArguments
from refdesk.policy.keys import KeyFile, KeyRing, Keys, digest

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
CONFIGURED = [ApiKey.model_validate({"key": "configured-key", "name": "fixed", "user": "eve"})]


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def ring(file: KeyFile) -> KeyRing:
    return KeyRing(file, CONFIGURED, now=lambda: NOW)


def test_a_key_that_is_made_opens_what_was_asked_for(ring: KeyRing, file: KeyFile) -> None:
    key, entry = ring.make("ci", tenant="acme", roles=["Reader"], toolsets=["docs"], servers=["git__*"], expires="30d")
    assert entry == {
        "name": "ci",
        "user": "ci",
        "tenant": "acme",
        "roles": ["reader"],
        "toolsets": ["docs"],
        "servers": ["git__*"],
        "created": "2026-05-01T12:00:00+00:00",
        "expires": "2026-05-31T12:00:00+00:00",
        "expired": False,
        "source": "keys.json",
    }
    caller = Keys([], file, clock=NOW.timestamp).find(digest(key))
    assert caller is not None
    assert (str(caller.tenant), set(caller.roles)) == ("acme", {"reader"})


def test_what_is_listed_gives_no_key_away(ring: KeyRing) -> None:
    key, _ = ring.make("ci")
    listed = ring.listed()
    assert [(entry["name"], entry["source"]) for entry in listed] == [("ci", "keys.json"), ("fixed", "configuration")]
    for secret in (key, digest(key).hex(), "configured-key", digest("configured-key").hex()):
        assert secret not in repr(listed)


@pytest.mark.parametrize(
    ("given", "argument", "said"),
    [
        ({"name": " "}, "name", "is required"),
        ({"name": "x" * 256}, "name", "at most 255"),
        ({"name": "a\nb"}, "name", "printable"),
        ({"name": "fixed"}, "name", "the configuration has a key"),
        (
            {"name": "a", "roles": ["raeder"]},
            "roles",
            "did you mean 'reader'? known are reader, writer, service, admin",
        ),
        ({"name": "a", "toolsets": ["nothing"]}, "toolsets", "known are "),
        ({"name": "a", "servers": [""]}, "servers", "is required"),
        ({"name": "a", "servers": ["x"] * 101}, "servers", "at most 100"),
        ({"name": "a", "expires": "soon"}, "expires", "neither a length such as 90d"),
        ({"name": "a", "expires": "2020-01-01"}, "expires", "has passed"),
        ({"name": "a", "expires": "999999w"}, "expires", "neither a length"),
    ],
)
def test_what_is_wrong_is_named(ring: KeyRing, given: dict[str, Any], argument: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        ring.make(**given)
    [problem] = refused.value.problems
    assert problem.argument == argument
    assert said in problem.rule
    assert ring.listed()[0]["name"] == "fixed"


def test_a_key_is_revoked_by_its_name_and_one_of_the_configuration_is_not(ring: KeyRing) -> None:
    ring.make("ci")
    assert ring.revoke("ci") == "ci"
    with pytest.raises(InvalidArguments, match="is configured; remove it from the configuration"):
        ring.revoke("fixed")
    with pytest.raises(InvalidArguments, match="there is no key named 'ci'"):
        ring.revoke("ci")
