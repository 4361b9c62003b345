"""Keys that open only some of the servers behind the desk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from refdesk.config.models import ApiKey
from refdesk.policy.keys import KeyFile, Keys, StoredKey, digest


def test_a_key_of_the_configuration_opens_the_servers_that_it_names() -> None:
    keys = Keys(
        [
            ApiKey.model_validate({"key": "some", "servers": ["github", "jira__get_*"]}),
            ApiKey.model_validate({"key": "all"}),
        ]
    )
    some, every = keys.find(digest("some")), keys.find(digest("all"))
    assert some is not None
    assert some.servers == frozenset({"github", "jira__get_*"})
    assert every is not None
    assert every.servers is None


def test_a_key_of_the_file_opens_the_servers_that_it_names_and_older_files_are_read(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    made = StoredKey(
        name="ci",
        sha256=digest("ci").hex(),
        user="ci",
        tenant="default",
        servers=("github",),
        created=datetime.now(UTC),
    )
    file.add(made)
    [stored] = file.read()
    assert stored.servers == ("github",)
    file.path.write_text(file.path.read_text().replace('"servers": [\n        "github"\n      ],', ""))
    [older] = file.read()
    assert older.servers == ()
    caller = Keys([], file).find(digest("ci"))
    assert caller is not None
    assert caller.servers is None
