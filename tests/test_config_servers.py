"""`mcpServers` in the configuration: as other clients' files have them, filled in, checked key by key, masked."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refdesk.config.loading import load, load_servers_again
from refdesk.config.models import Config
from refdesk.config.server_entries import IGNORED, KEYS, KNOWN, read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.config.setting_keys import describe_settings
from refdesk.errors import ConfigError
from refdesk.telemetry.log import iter_secrets

SECRET = "hunter2hunter2"
STDIO = {"command": "npx"}


def server(entry: dict[str, Any], environ: dict[str, str] | None = None) -> McpServerConfig:
    return load(None, environ or {}, {"mcpServers": {"one": entry}}).mcpServers["one"]


def problems(entry: Any, environ: dict[str, str] | None = None, name: Any = "one") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(None, environ or {}, {"mcpServers": {name: entry}})
    return [problem.removeprefix("command line: ") for problem in caught.value.problems]


def plain(values: Any) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in values.items()}


def test_servers_are_read_from_the_file_with_their_source(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text(
        "mcpServers:\n  files: {command: npx, args: [-y, fs], env: {A: '${A}'}}\n  web: {url: 'http://h/sse'}\n"
    )
    config = load(path, {"A": "x"})
    assert list(config.mcpServers) == ["files", "web"]
    assert config.mcpServers["files"].args == ("-y", "fs")
    assert plain(config.mcpServers["files"].env) == {"A": "x"}
    assert config.mcpServers["web"].kind == "sse"
    assert config.sources["mcpServers"] == "refdesk.yaml"
    assert "downstream" in config.toolsets


def test_what_other_programs_write_as_json_may_be_put_into_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text("""server: {port: 9}
mcpServers: {
    "github": {
      "command": "docker",
      "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "image"],
      "env": {"GITHUB_TOKEN": "${T}"},
      "disabled": false, "autoApprove": []
    },
    "web": {"type": "streamable-http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer {T}"}}
  }
""")
    servers = load(path, {"T": "tee"}).mcpServers
    assert [one.kind for one in servers.values()] == ["stdio", "http"]
    assert plain(servers["web"].headers) == {"Authorization": "Bearer tee"}


def test_servers_under_the_name_of_another_program_are_told_where_they_go() -> None:
    for key in ("servers", "mcp_servers"):
        with pytest.raises(ConfigError, match="MCP servers are configured in the file, under mcpServers"):
            load(None, {}, {key: {"a": STDIO}})


def test_a_configuration_with_servers_can_be_sent_to_a_worker() -> None:
    config = load(None, {"T": SECRET}, {"mcpServers": {"a": {**STDIO, "args": ["${T}"]}}})
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_key_given_twice_in_a_server_is_told_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text(
        "mcpServers:\n  a:\n    command: x\n    docs:\n      arguments: {deep: {k: 1, k: 2}}\n    command: y\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert set(caught.value.problems) == {
        "refdesk.yaml: mcpServers.a.command: duplicate key, on lines 3 and 6",
        "refdesk.yaml: mcpServers.a.docs.arguments.deep.k: duplicate key, on lines 5 and 5",
    }


def test_aliases_that_multiply_are_read_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    levels = "\n".join(f"      - &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    path.write_text(f"mcpServers:\n  a:\n    command: x\n    args:\n      - &l0 [y]\n{levels}\n")
    with pytest.raises(ConfigError, match=r"args\[0\]"):
        load(path, {})


# Filling in


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "alpha"),
        ("x-${A}-${A}", "x-alpha-alpha"),
        ("${env:A}", "alpha"),
        ("${NO:-b c}", "b c"),
        ("${NO:-}", ""),
        ("${env:NO:-d}", "d"),
        ("{A}", "alpha"),
        ("{NO}", "{NO}"),
        ("{BLANK}", "{BLANK}"),
        ("{a}", "{a}"),
        ('{"A": 1}', '{"A": 1}'),
        ("{ A }", "{ A }"),
        ("$${A}", "${A}"),
        ("$A", "$A"),
        ("${workspaceFolder}/x", f"{os.getcwd()}/x"),
        ("${userHome}", str(Path.home())),
        ("${NESTED}", "${A}"),
    ],
)
def test_variables_are_filled_into_every_text_of_a_server(text: str, filled: str) -> None:
    environ = {"A": "alpha", "BLANK": " ", "NESTED": "${A}"}
    one = server({"command": "x", "args": [text], "env": {"K": text}, "docs": {"arguments": {"a": [text]}}}, environ)
    assert one.args == (filled,)
    assert plain(one.env) == {"K": filled}
    assert one.docs is not None
    assert one.docs.arguments == {"a": [filled]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NO}", "environment variable NO is not set; set it, or write ${NO:-default}"),
        ("${env:NO}", "environment variable NO is not set; set it, or write ${NO:-default}"),
        ("${input:key}", "cannot prompt for 'key'; write ${NAME} and set that variable"),
        ("${1a}", "${…} must contain the name of an environment variable; write $${ for a literal ${"),
        ("${}", "${…} must contain the name of an environment variable; write $${ for a literal ${"),
    ],
)
def test_a_server_with_a_variable_that_cannot_be_filled_in_is_disabled_with_the_reason(text: str, problem: str) -> None:
    assert server({**STDIO, "env": {"K": text}}).problem == f"env.K: {problem}"
    assert server({**STDIO, "args": ["a", text]}).problem == f"args[1]: {problem}"
    one = server({"url": f"{text}/sse", "call_timeout_seconds": text, "headers": {"A": "b"}})
    assert (one.enabled, one.kind, one.where) == (False, "sse", f"{text}/sse")
    assert one.problem == f"url: {problem}; call_timeout_seconds: {problem}"
    assert problems({**STDIO, "env": {"K": text}, "comand": "x"})[0].startswith("mcpServers.one.comand: unknown key")


def test_a_server_that_is_switched_off_may_wait_for_its_variables() -> None:
    assert not server({"command": "${NO}", "disabled": True}).enabled


def test_variables_of_a_file_stand_below_those_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# comment\nexport A='one two'\nB=\"x#y\"\nC=plain # why\n\nnonsense\nD=\n")
    one = server({**STDIO, "envFile": str(file), "env": {"C": "mine"}})
    assert plain(one.env) == {"A": "one two", "B": "x#y", "C": "mine", "D": ""}


def test_a_file_of_variables_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"A=" + b"x" * 2_000_000)
    for path, words in (("no", "no such file"), ("pipe", "is not a regular file"), ("large", "is larger than")):
        problem = server({**STDIO, "envFile": str(tmp_path / path)}).problem
        assert problem is not None
        assert problem.startswith("envFile: ")
        assert words in problem


# Other clients' words


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "disabled": True}, {"enabled": False}),
        ({"command": "x", "disabled": False}, {"enabled": True}),
        ({"command": "x", "isActive": False}, {"enabled": False}),
        ({"command": ["x", "-a", "b"], "type": "local"}, {"command": "x", "args": ("-a", "b"), "kind": "stdio"}),
        ({"command": {"path": "x", "args": ["y"]}}, {"command": "x", "args": ("y",)}),
        ({"serverUrl": "https://h/sse"}, {"kind": "sse"}),
        ({"httpUrl": "https://h/sse"}, {"kind": "http"}),
        ({"url": "https://h/x", "transportType": "sse"}, {"kind": "sse"}),
        ({"url": "https://h/x", "type": "streamable-http"}, {"kind": "http"}),
        ({"url": "wss://h/x"}, {"kind": "websocket"}),
        ({"command": "x", "url": ""}, {"kind": "stdio"}),
        ({"command": "x", "startup_timeout_sec": 7, "tool_timeout_sec": 9}, {"connect_timeout_seconds": 7}),
        ({"command": "x", "startup_timeout_ms": 1500}, {"connect_timeout_seconds": 1.5}),
        ({"command": "x", "cwd": None, "url": None}, {"cwd": None}),
    ],
)
def test_what_other_clients_write_is_understood(entry: dict[str, Any], expected: dict[str, Any]) -> None:
    one = server(entry)
    assert {name: getattr(one, name) for name in expected} == expected


def test_lists_of_tools_become_rules() -> None:
    one = server({**STDIO, "includeTools": ["a", "b"], "disabledTools": ["b"], "tools": {"rename": {"a": "c"}}})
    assert (one.tools.allow, one.tools.deny, one.tools.rename) == (("a", "b"), ("b",), {"a": "c"})
    assert server({**STDIO, "tools": ["*"]}).tools.allow == ()
    assert server({**STDIO, "tools": ["get"]}).tools.allow == ("get",)


def test_credentials_that_are_named_by_their_variables_become_headers() -> None:
    entry = {
        "url": "https://h/mcp",
        "bearer_token_env_var": "T",
        "env_http_headers": {"X-Key": "K"},
        "http_headers": {"X-Plain": "p"},
    }
    headers = plain(server(entry, {"T": "tee", "K": "kay"}).headers)
    assert headers == {"Authorization": "Bearer tee", "X-Key": "kay", "X-Plain": "p"}
    assert plain(server({**STDIO, "env_vars": ["A", "B"]}, {"A": "x"}).env) == {"A": "x", "B": ""}


def test_what_means_nothing_here_is_passed_over_and_what_is_in_vain_is_said() -> None:
    assert server({**STDIO, **dict.fromkeys(IGNORED, "whatever")}) == server(STDIO)
    config = load(None, {}, {"mcpServers": {"one": {**STDIO, "timeout": 60, "oauth": {}}}})
    assert sorted(config.warnings) == [
        "command line: mcpServers.one.oauth: is ignored; set headers, with ${NAME} for the token",
        "command line: mcpServers.one.timeout: is ignored, as clients disagree on its unit; set call_timeout_seconds",
    ]


# Problems


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, ": expected a server with either a command or a url"),
        ({"command": "x", "url": "http://h"}, ": expected a server with either a command or a url"),
        ({"url": "http://h", "type": "stdio"}, ": expected a server of the type stdio, which needs a command"),
        ({"comand": "x"}, ".comand: unknown key; did you mean command?"),
        ({**STDIO, "alwaysAlow": []}, ".alwaysAlow: unknown key; did you mean alwaysAllow?"),
        ({**STDIO, "filled_in": ["x"]}, f".filled_in: unknown key; expected one of {', '.join(KEYS)}"),
        ({**STDIO, "tools": {"alow": []}}, ".tools.alow: unknown key; did you mean allow?"),
        ({**STDIO, "docs": {"tol": "x"}}, ".docs.tol: unknown key; did you mean tool?"),
        ({**STDIO, "type": "studio"}, ".type: studio is not one of stdio, http, sse, websocket; did you mean stdio?"),
        ({**STDIO, "env": {"A": 5}}, ".env.A: ******** is not text; put it in quotes"),
        ({**STDIO, "env": {"A=B": "x"}}, ".env.'A=B': ******** is not the name of an environment variable"),
        ({**STDIO, "env": {"A": "x\0y"}}, ".env.A: ******** is not text without null characters"),
        ({**STDIO, "args": "-y"}, ".args: ******** is not a list"),
        ({**STDIO, "disabled": "yes"}, ".disabled: expected true or false"),
        (
            {**STDIO, "disabled": True, "enabled": True},
            ".disabled: enabled is set twice under different names; keep one",
        ),
        (
            {**STDIO, "includeTools": [], "enabled_tools": []},
            ".enabled_tools: tools.allow is set twice under different names; keep one",
        ),
        ({**STDIO, "call_timeout_seconds": 0}, ".call_timeout_seconds: 0 is not greater than 0"),
        ({"url": "ftp://h"}, ".url: ******** is not a URL such as https://example.com/mcp"),
        ({"url": "http://h", "headers": {"A": "x\ny"}}, ".headers.A: ******** is not a single line of printable text"),
        ({"url": "http://h", "headers": {"A B": "x"}}, ".headers.'A B': ******** is not the name of an HTTP header"),
        ({**STDIO, "args": ["\ud800"]}, ".args[0]: not UTF-8 text"),
        ("npx", ": expected a mapping, not text"),
    ],
)
def test_a_problem_names_the_server_and_the_key(entry: Any, problem: str) -> None:
    assert problems(entry) == [f"mcpServers.one{problem}"]


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 65, " a", "a ", "a\n", 7, None, ".."[:0]])
def test_a_name_that_will_not_do_is_refused(name: Any) -> None:
    (problem,) = problems(STDIO, name=name)
    assert "a server's name is 1 to 64 letters" in problem


@pytest.mark.parametrize("name", ["a", "My Server-2.0_x", "x" * 64])
def test_a_name_that_will_do_is_taken(name: str) -> None:
    assert list(load(None, {}, {"mcpServers": {name: STDIO}}).mcpServers) == [name]


def test_all_problems_of_all_servers_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"mcpServers": {"a": {"comand": "x"}, "b": {**STDIO, "hold": "x"}, "c": STDIO}, "project": 7})
    assert len(caught.value.problems) == 3


def test_the_keys_of_a_preset_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"downstream\.presets\.p\.alow: unknown key; did you mean allow\?"):
        load(None, {}, {"downstream.presets": {"p": {"alow": ["x"]}}})


def test_servers_that_were_made_by_a_program_are_taken_as_they_are() -> None:
    made = McpServerConfig(command="x")
    assert load(None, {}, {"mcpServers": {"a": made}}).mcpServers["a"] is made


def test_reading_again_wants_a_whole_file_that_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text("mcpServers: {a: {command: x}}\nserver: {port: 70000}\n")
    assert list(load_servers_again(path, {})) == ["a"]
    for text, words in (("", "is empty"), ("mcpServers: {a: {comand", "not valid YAML"), ("sever: {}", "unknown key")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_servers_again(path, {})
    path.write_text("mcpServers: {}\n")
    assert load_servers_again(path, {}) == {}


# Secrets

CONFIDENTIAL: list[dict[str, Any]] = [
    {**STDIO, "env": {"A": SECRET}},
    {**STDIO, "args": ["--api-key", SECRET]},
    {**STDIO, "args": [f"--token={SECRET}"]},
    {**STDIO, "args": ["-e", f"GITHUB_PAT={SECRET}"]},
    {**STDIO, "args": ["--header", f"Authorization: Bearer {SECRET}"]},
    {**STDIO, "args": ["x", "{THE_TOKEN}"]},
    {**STDIO, "args": ["x", "prefix-${THE_TOKEN}"]},
    {**STDIO, "args": [f"https://u:{SECRET}@h/p"]},
    {"url": f"https://u:{SECRET}@h/p"},
    {"url": f"https://h/p?key={SECRET}"},
    {"url": "https://h/p", "headers": {"Authorization": f"Bearer {SECRET}"}},
    {"url": "https://h/p", "headers": {"X-Anything": SECRET}},
    {"command": "/opt/${THE_TOKEN}/x"},
    {**STDIO, "cwd": "/opt/${THE_TOKEN}"},
    {**STDIO, "docs": {"arguments": {"key": "${THE_TOKEN}"}}},
]


@pytest.mark.parametrize("entry", CONFIDENTIAL)
def test_secrets_are_shown_nowhere_and_told_to_the_log(entry: dict[str, Any]) -> None:
    config = load(None, {"THE_TOKEN": SECRET}, {"mcpServers": {"one": entry}})
    one = config.mcpServers["one"]
    for text in (repr(config), str(config), repr(one), f"{one}", one.where, str(describe_settings(config))):
        assert SECRET not in text
    assert any(secret in (SECRET, f"key={SECRET}") for secret in iter_secrets(config))


@pytest.mark.parametrize("entry", CONFIDENTIAL)
@pytest.mark.parametrize(
    "wrong", [{"type": 5}, {"unknwon": SECRET}, {"env": [SECRET]}, {"headers": SECRET}, {"docs": SECRET}]
)
def test_secrets_are_in_no_problem(entry: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert SECRET not in "\n".join(problems({**entry, **wrong}, {"THE_TOKEN": SECRET}))


def test_a_path_that_holds_a_key_is_masked_and_an_ordinary_one_is_not() -> None:
    assert server({"url": "https://h/s/0123456789abcdef0123456789/mcp"}).where == "https://h/s/********/mcp"
    assert server({"url": "https://example.com/api/servers/v2/mcp"}).where == "https://example.com/api/servers/v2/mcp"


def test_what_is_shown_of_a_server_is_what_was_set() -> None:
    config = load(None, {}, {"mcpServers": {"a": {"command": "npx", "args": ["-y", "fs"], "env": {"A": "x"}}}})
    rows = {key: value for key, value, _ in describe_settings(config)}
    assert rows["mcpServers.a"] == "{command: npx, args: [-y, fs], env: {A: ********}}"
    assert "mcpServers" not in rows
    assert ("mcpServers", "{}", "default") in describe_settings(load(None, {}))


# Garbage

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | st.binary()
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
entries = st.dictionaries(st.sampled_from([*KEYS, *KNOWN]) | st.text(max_size=5) | st.integers(), garbage, max_size=5)


@given(st.dictionaries(st.text(max_size=5) | st.integers(), entries | garbage, max_size=3) | garbage)
@example({"a": {"command": "x", "args": ["${" * 50], "tools": [["*"]]}})
@example({"a": {"command": "x", "disabledTools": "x", "tools": 5, "env": {1: 2}, "bearer_token_env_var": {}}})
@example({"a": {"url": "http://[", "headers": {"A": None}}})
@example({"a": {"\ud7fc": float("nan")}})
def test_anything_gives_servers_or_plain_problems(value: Any) -> None:
    read = read_entries(value, {}, source="x", folder=Path("/"))
    assert all(isinstance(one, McpServerConfig) for one in read.servers.values())
    for fault in (*read.faults, *read.warnings):
        text = str(fault)
        assert text.isprintable()
        assert "Input should" not in text
        assert not text.endswith("accepted")
    assert not read.servers.keys() & read.broken.keys()


@given(st.dictionaries(st.text(max_size=5), entries, max_size=2))
def test_any_servers_give_a_configuration_that_can_be_shown_or_problems(value: Any) -> None:
    try:
        config: Config = load(None, {}, {"mcpServers": value})
    except ConfigError:
        return
    assert all(text.isprintable() for _, text, _ in describe_settings(config))


def test_a_preset_that_does_not_exist_is_told(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text(
        "downstream: {presets: {reading: {allow: ['get_*']}}}\nmcpServers: {a: {command: x, preset: readng}}"
    )
    with pytest.raises(ConfigError) as raised:
        load(path, {})
    assert raised.value.problems == ("refdesk.yaml: mcpServers: a: unknown preset readng; expected one of reading",)


def test_what_is_said_twice_alike_is_said_once() -> None:
    entry = {"url": "http://127.0.0.1:1/mcp", "type": "http", "transport": "http"}
    entries = read_entries({"a": entry}, {}, source="x", folder=Path.cwd(), key="mcpServers")
    assert not entries.faults
    assert entries.servers["a"].kind == "http"
