"""API keys: the file they are kept in, and who is let in with one."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from refdesk.calls import ANONYMOUS, LOCAL, Answer, Call, Caller
from refdesk.config.models import ApiKey
from refdesk.errors import ConfigError, InvalidArguments, StorageError, Unauthenticated
from refdesk.policy.keys import POLL_SECONDS, KeyFile, Keys, StoredKey, digest, new_key
from refdesk.policy.policies import Authenticate

pytestmark = pytest.mark.anyio

KEY = "a-key-of-the-configuration"
ANN = ApiKey(key=KEY, user="ann", tenant="acme", roles=("reader",), toolsets=("docs", "Reader"))


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "data" / "keys.json")


@dataclass
class Time:
    """Clocks that go on when told to."""

    steady: float = 0.0
    wall: float = time.time()

    def now(self) -> float:
        return self.steady

    def clock(self) -> float:
        return self.wall


def make_stored(name: str, key: str, **more: Any) -> StoredKey:
    given = {"user": name, "tenant": "default", "created": datetime.now(UTC)} | more
    return StoredKey(name=name, sha256=digest(key).hex(), **given)


def test_a_key_is_long_and_random_and_known_for_ours() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("rd_") and len(key) >= 46 for key in made)


def test_the_file_is_for_its_owner_only_and_holds_no_key(file: KeyFile) -> None:
    key = new_key()
    file.add(make_stored("ci", key, roles=("reader",)))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    text = file.path.read_text()
    assert key not in text
    assert key.removeprefix("rd_") not in text
    assert digest(key).hex() in text
    file.add(make_stored("other", new_key()))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [entry.name for entry in file.read()] == ["ci", "other"]
    assert [path.name for path in file.path.parent.iterdir() if path.name.startswith(".keys-")] == []


def test_a_name_is_taken_once_and_a_missing_one_is_told(file: KeyFile) -> None:
    file.add(make_stored("laptop", new_key()))
    with pytest.raises(InvalidArguments, match="already"):
        file.add(make_stored("laptop", new_key()))
    with pytest.raises(InvalidArguments, match="did you mean 'laptop'"):
        file.remove("labtop")
    assert file.remove("laptop").name == "laptop"
    assert file.read() == ()


def test_many_who_write_at_once_lose_nothing(file: KeyFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: file.add(make_stored(f"key {number}", new_key())), range(40)))
    assert {entry.name for entry in file.read()} == {f"key {number}" for number in range(40)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is invalid"),
        ("[]", "is invalid"),
        ('{"version": 2, "keys": []}', "version"),
        ('{"keys": [{"name": "a"}]}', "keys.0.sha256"),
        ('{"keys": [], "more": 1}', "more"),
    ],
)
def test_a_file_that_cannot_be_understood_is_neither_used_nor_written_over(
    file: KeyFile, content: str, said: str
) -> None:
    file.path.parent.mkdir()
    file.path.write_text(content)
    for use in (lambda: Keys((), file), lambda: file.add(make_stored("a", "b")), lambda: file.remove("a")):
        with pytest.raises(ConfigError, match=said):
            use()
    assert file.path.read_text() == content


def test_an_error_about_the_file_does_not_repeat_what_is_in_it(file: KeyFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text(json.dumps({"keys": [{"name": "a", "sha256": "the-secret", "key": "the-secret"}]}))
    with pytest.raises(ConfigError) as refused:
        file.read()
    assert "the-secret" not in str(refused.value)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageError, match=r"keys\.json cannot be written"):
        KeyFile(tmp_path / "data" / "keys.json").add(make_stored("a", "b"))


def test_a_key_says_tenant_user_roles_and_toolsets(file: KeyFile) -> None:
    key = new_key()
    file.add(make_stored("ci", key, user="ci", tenant="beta", roles=("writer",), toolsets=("docs",)))
    keys = Keys([ANN], file)
    ann, ci = keys.find(digest(KEY)), keys.find(digest(key))
    assert ann is not None
    assert ci is not None
    assert (ann.user, ann.tenant, ann.authenticated, ann.local) == ("ann", "acme", True, False)
    assert (ci.user, ci.tenant, ci.authenticated, ci.local) == ("ci", "beta", True, False)
    assert (ann.roles, ci.roles) == (frozenset({"reader"}), frozenset({"writer"}))
    assert (ann.toolsets, ci.toolsets) == (frozenset({"docs", "reader"}), frozenset({"docs"}))


def test_a_key_without_toolsets_opens_all_of_them() -> None:
    found = Keys([ApiKey(key=KEY)]).find(digest(KEY))
    assert found is not None
    assert found.toolsets is None


def test_a_revoked_key_stops_working_within_a_second_and_a_new_one_starts(file: KeyFile) -> None:
    assert POLL_SECONDS < 1
    passing, key = Time(), new_key()
    keys = Keys((), file, now=passing.now, clock=passing.clock)
    assert keys.find(digest(key)) is None
    file.add(make_stored("ci", key))
    passing.steady += POLL_SECONDS
    assert keys.find(digest(key)) is not None
    file.remove("ci")
    passing.steady += POLL_SECONDS
    assert keys.find(digest(key)) is None


def test_between_two_looks_the_disk_is_not_asked(file: KeyFile) -> None:
    passing, looks = Time(), 0

    class Counting(KeyFile):
        def read_version(self) -> tuple[int, int, int] | None:
            nonlocal looks
            looks += 1
            return super().read_version()

    keys = Keys([ANN], Counting(file.path), now=passing.now, clock=passing.clock)
    looks = 0
    for _ in range(1000):
        keys.find(digest(KEY))
    assert looks == 0
    passing.steady += POLL_SECONDS
    for _ in range(1000):
        keys.find(digest(KEY))
    assert looks == 1


def test_a_file_that_breaks_while_the_desk_runs_changes_nothing(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    passing, key = Time(), new_key()
    file.add(make_stored("ci", key))
    keys = Keys((), file, now=passing.now, clock=passing.clock)
    file.path.write_text("{")
    for _ in range(3):
        passing.steady += POLL_SECONDS
        assert keys.find(digest(key)) is not None
    (record,) = [record for record in caplog.records if record.name == "refdesk.policy.keys"]
    assert "is invalid" in record.getMessage()
    file.path.unlink()
    passing.steady += POLL_SECONDS
    assert keys.find(digest(key)) is None


def test_a_key_ends_when_its_time_has_come(file: KeyFile) -> None:
    passing, key = Time(), new_key()
    file.add(make_stored("ci", key, expires=datetime.fromtimestamp(passing.wall, UTC) + timedelta(hours=1)))
    keys = Keys((), file, now=passing.now, clock=passing.clock)
    passing.wall += 3599
    assert keys.find(digest(key)) is not None
    passing.wall += 2
    assert keys.find(digest(key)) is None


def identify(authenticate: Authenticate, credential: str | None) -> Caller:
    caller = authenticate.identify(credential)
    assert isinstance(caller, Caller), "a key is known at once"
    return caller


async def answer(call: Call) -> Answer:
    return Answer({"content": []})


async def test_a_desk_that_asks_for_keys_lets_nobody_in_by_another_way() -> None:
    required = Authenticate(Keys([ANN]), required=True)
    assert identify(required, KEY).user == "ann"
    for wrong in (None, "", KEY[:-1], f"{KEY}x", KEY.upper(), f" {KEY}", "\ud800", "a.b.c"):
        with pytest.raises(Unauthenticated, match="Invalid API key"):
            required.identify(wrong)
    with pytest.raises(Unauthenticated):
        await required(Call("tools/call", caller=ANONYMOUS), answer)
    assert await required(Call("tools/call", caller=LOCAL), answer)


def test_where_keys_are_only_offered_a_wrong_one_is_still_refused() -> None:
    offered = Authenticate(Keys([ANN]), required=False)
    assert offered.identify(None) is ANONYMOUS
    with pytest.raises(Unauthenticated):
        offered.identify("another")


def test_a_desk_without_any_key_looks_at_none(file: KeyFile) -> None:
    open_to_all = Authenticate(Keys((), file), required=False)
    assert open_to_all.identify("whatever") is ANONYMOUS
    assert not open_to_all.has_keys


@pytest.mark.parametrize("end", [KeyFile.remove, lambda file, name: file.path.unlink()])
def test_to_revoke_the_last_key_does_not_open_the_door(file: KeyFile, end: Callable[[KeyFile, str], object]) -> None:
    passing, key = Time(), new_key()
    file.add(make_stored("last", key))
    keys = Keys((), file, now=passing.now, clock=passing.clock)
    required, offered = Authenticate(keys, required=True), Authenticate(keys, required=False)
    assert identify(required, key)
    end(file, "last")
    passing.steady += POLL_SECONDS
    for credential in (key, None, ""):
        with pytest.raises(Unauthenticated):
            required.identify(credential)
    with pytest.raises(Unauthenticated):
        offered.identify(key)
    assert offered.has_keys


def test_required_without_any_key_lets_nobody_in() -> None:
    shut = Authenticate(Keys(()), required=True)
    for credential in (None, "", "x"):
        with pytest.raises(Unauthenticated):
            shut.identify(credential)
