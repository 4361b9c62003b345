"""Other programs' settings files: one entry changes, and every other character stays."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.cli.settings_files import (
    EditError,
    get_member,
    get_table,
    remove_member,
    remove_table,
    set_member,
    set_table,
)
from refdesk.downstream.files import jsonc

PATH = ("mcpServers", "refdesk")
ENTRY = {"type": "http", "url": "http://h/mcp"}

COMMENTED = """\
// mine
{
    /* theme */ "theme": "dark", // stays
    "mcpServers": {
        // the other one
        "time": { "command": "uvx", "args": ["a,}b"] }, // trailing
    },
    "last": [1, 2,],
}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "mcpServers": {\n    "refdesk": {\n      "a": 1\n    }\n  }\n}\n'),
        ("{}", '{\n  "mcpServers": {\n    "refdesk": {\n      "a": 1\n    }\n  }\n}'),
        ('{"mcpServers": {}}', '{"mcpServers": {\n    "refdesk": {\n      "a": 1\n    }\n  }}'),
        ('{"a": 1}', '{"a": 1, "mcpServers": {"refdesk": {"a": 1}}}'),
        (
            '{\n\t"mcpServers": {\n\t\t"x": {}\n\t}\n}\n',
            '{\n\t"mcpServers": {\n\t\t"x": {},\n\t\t"refdesk": {\n\t\t\t"a": 1\n\t\t}\n\t}\n}\n',
        ),
        ('{"mcpServers": {"refdesk": 1, "x": 2}}', '{"mcpServers": {"refdesk": {\n      "a": 1\n    }, "x": 2}}'),
    ],
)
def test_an_entry_is_put_where_it_belongs(text: str, expected: str) -> None:
    assert set_member(text, PATH, {"a": 1}) == expected


def test_comments_and_trailing_commas_stay_as_they_are() -> None:
    changed = set_member(COMMENTED, PATH, ENTRY)
    assert [line for line in changed.splitlines() if line in COMMENTED.splitlines()] == COMMENTED.splitlines()
    assert get_member(changed, PATH) == ENTRY
    assert remove_member(changed, PATH) == COMMENTED


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ('{"s": {"a": 1}}', "a", '{"s": {}}'),
        ('{"s": {"a": 1, "b": 2}}', "a", '{"s": {"b": 2}}'),
        ('{"s": {"a": 1, "b": 2}}', "b", '{"s": {"a": 1 }}'),
        ('{"s": {\n  "a": 1,\n  "b": 2\n}}', "b", '{"s": {\n  "a": 1\n}}'),
        ('{"s": {\n  "a": 1, // one\n  // two\n  "b": 2\n}}', "b", '{"s": {\n  "a": 1 // one\n  // two\n}}'),
        ('{"s": {\n  "a": 1,\n  "b": 2,\n  "c": 3,\n}}', "b", '{"s": {\n  "a": 1,\n  "c": 3,\n}}'),
    ],
)
def test_an_entry_is_taken_out_with_its_comma(text: str, name: str, expected: str) -> None:
    assert remove_member(text, ("s", name)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"mcpServers": 3}', "is not an object"),
        ('{"mcpServers": {"a": 1, "a": 2}}', "appears twice"),
    ],
)
def test_a_text_that_is_not_understood_is_left_alone(text: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        set_member(text, PATH, ENTRY)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


@given(document=OBJECTS, servers=OBJECTS, indent=st.sampled_from([None, 2, 4, "\t"]), name=st.text(max_size=8))
def test_any_file_means_the_same_but_for_the_entry(
    document: dict[str, Any], servers: dict[str, Any], indent: int | str | None, name: str
) -> None:
    document = {**document, "mcpServers": servers}
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    changed = set_member(text, ("mcpServers", name), ENTRY)
    assert jsonc.parse(changed) == {**document, "mcpServers": {**servers, name: ENTRY}}
    left = {other: value for other, value in servers.items() if other != name}
    assert jsonc.parse(remove_member(changed, ("mcpServers", name))) == {**document, "mcpServers": left}


CODEX = """\
# My settings
model = "o9" # the best

[mcp_servers.time]
command = "uvx"

# about the next
[profiles.fast]
model = "o9-mini"
"""


def test_a_table_is_added_at_the_end_and_taken_out_again() -> None:
    changed = set_table(CODEX, ("mcp_servers", "refdesk"), {"url": "http://h/mcp", "args": ["a"]})
    assert changed == CODEX + '\n[mcp_servers.refdesk]\nurl = "http://h/mcp"\nargs = ["a"]\n'
    assert get_table(changed, ("mcp_servers", "refdesk")) == {"url": "http://h/mcp", "args": ["a"]}
    assert remove_table(changed, ("mcp_servers", "refdesk")) == CODEX


def test_a_table_takes_the_place_of_one_that_is_there_with_those_below_it() -> None:
    text = CODEX.replace("[mcp_servers.time]", '[mcp_servers."time".env]\nA = "1"\n\n[ mcp_servers . time ]')
    changed = set_table(text, ("mcp_servers", "time"), {"url": "http://h"})
    assert tomllib.loads(changed)["mcp_servers"] == {"time": {"url": "http://h"}}
    assert "# about the next\n[profiles.fast]" in changed
    assert changed.startswith('# My settings\nmodel = "o9" # the best\n')


@pytest.mark.parametrize(
    "text",
    ['mcp_servers = { refdesk = { url = "x" } }', 'mcp_servers.refdesk.url = "x"', "mcp_servers = 3", "x = "],
)
def test_a_table_that_is_written_otherwise_is_left_alone(text: str) -> None:
    with pytest.raises(EditError):
        set_table(text, ("mcp_servers", "refdesk"), {"url": "y"})


def test_a_file_without_the_table_can_lose_its_only_one() -> None:
    assert remove_table('[mcp_servers.refdesk]\nurl = "x"\n', ("mcp_servers", "refdesk")) == ""
