"""What of a server's lists is offered: definitions that can be used, and rules."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.downstream.fleet.exposure import (
    MAX_DEFINITION_BYTES,
    MAX_EXPOSED_ENTRIES,
    MAX_NAME_CHARACTERS,
    ExposureRules,
    filter_list,
)
from tests.downstream.scripted import server_settings, tool


def rules(preset: ToolRules | None = None, **own: Any) -> ExposureRules:
    settings: McpServerConfig = server_settings(tools=own, preset="begin" if preset else None)
    return ExposureRules(settings, {"begin": preset} if preset else {})


def test_a_definition_is_passed_on_with_what_nobody_here_knows() -> None:
    whole = tool(
        "draw",
        title="Draw",
        icons=[{"src": "data:image/png;base64,AA=="}],
        annotations={"readOnlyHint": True},
        outputSchema={"type": "object"},
        _meta={"vendor/x": 1},
        fromTheFuture={"deep": [1, None]},
    )
    (entry,) = filter_list("tools", [whole]).entries
    assert entry.definition is whole


@pytest.mark.parametrize(
    "broken",
    [
        {"name": 7},
        {"name": ""},
        {"inputSchema": None},
        {"inputSchema": "object"},
        {"inputSchema": {"type": "array"}},
        {"inputSchema": {"type": ["object", "null"]}},
        {"inputSchema": {"type": "object", "properties": []}},
        {"inputSchema": {"type": "object", "required": "all"}},
        {"outputSchema": "text"},
        {"description": {"text": "no"}},
        {"title": 1},
        {"annotations": []},
        {"icons": {}},
        {"_meta": "x"},
        {"default": 2**70},
        {"description": "half of a \ud800"},
        {"description": "x" * MAX_DEFINITION_BYTES},
        {"name": "x" * (MAX_NAME_CHARACTERS + 1)},
    ],
)
def test_a_definition_that_a_strict_client_could_not_read_is_left_out_and_told(broken: dict[str, Any]) -> None:
    sifted = filter_list("tools", [tool("good"), {**tool("bad"), **broken}])
    assert [entry.original for entry in sifted.entries] == ["good"]
    assert sifted.dropped == len(sifted.reasons) == 1


def test_a_schema_that_leaves_its_type_unsaid_is_mended() -> None:
    (entry,) = filter_list("tools", [{**tool("now"), "inputSchema": {"properties": {}}}]).entries
    assert entry.definition["inputSchema"] == {"type": "object", "properties": {}}
    assert entry.given["inputSchema"] == {"properties": {}}


def test_of_two_of_one_name_the_first_counts() -> None:
    sifted = filter_list("tools", [tool("a", "first"), tool("a", "second")])
    assert [entry.definition["description"] for entry in sifted.entries] == ["first"]
    assert sifted.reasons == ["'a': it's a duplicate"]


def test_a_list_without_end_is_cut() -> None:
    sifted = filter_list(
        "templates", ({"uriTemplate": f"x:{n}{{a}}", "name": "x"} for n in range(MAX_EXPOSED_ENTRIES["templates"] + 5))
    )
    assert len(sifted.entries) == MAX_EXPOSED_ENTRIES["templates"]
    assert sifted.dropped == 5


def test_what_cannot_be_seen_is_counted() -> None:
    sifted = filter_list("tools", [tool("a", "do\u200b not \u202e read")])
    assert sifted.invisible == 2
    assert sifted.entries[0].definition["description"] == "do not  read"


def test_resources_need_a_uri_and_a_name() -> None:
    sifted = filter_list("resources", [{"uri": "x:1", "name": "one"}, {"uri": "x:2"}, {"name": "three"}])
    assert [entry.original for entry in sifted.entries] == ["x:1"]


def test_resources_with_a_hidden_name_are_cleaned_and_with_a_hidden_uri_left_out() -> None:
    sifted = filter_list("resources", [{"uri": "x:1", "name": "o\u200bne"}, {"uri": "x:\u202e2", "name": "two"}])
    assert [entry.definition["name"] for entry in sifted.entries] == ["one"]
    assert (sifted.invisible, sifted.dropped) == (1, 1)


def test_allow_and_deny_go_by_shell_patterns_and_deny_wins() -> None:
    ours = rules(allow=("get_*", "list"), deny=("*_secret",))
    assert [ours.allows(name) for name in ("get_page", "list", "Get_page", "get_secret", "put")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_server_begins_with_its_preset_and_adds_its_own_rules() -> None:
    preset = ToolRules(allow=("get_*",), deny=("get_all",), rename={"get_x": "x", "get_y": "y"})
    ours = rules(preset, allow=("put_*",), deny=("put_all",), rename={"get_y": "mine"})
    offered = [name for name in ("get_x", "get_all", "put_x", "put_all", "other") if ours.allows(name)]
    assert offered == ["get_x", "put_x"]
    assert [ours.name_of(name) for name in ("get_x", "get_y", "put_x")] == ["x", "mine", "put_x"]


def test_an_unknown_preset_offers_nothing_and_says_so() -> None:
    ours = ExposureRules(server_settings(preset="strict", tools={"allow": ("*",)}), {})
    assert not ours.allows("anything")
    assert ours.problem == "there is no preset 'strict' in downstream.presets"


def test_a_star_in_a_new_name_stands_for_what_the_pattern_left_open() -> None:
    ours = rules(rename={"browser_*": "web_*", "exact": "other", "*_old": "*"})
    assert [ours.name_of(name) for name in ("browser_click", "exact", "go_old", "plain")] == [
        "web_click", "other", "go", "plain",
    ]  # fmt: skip
