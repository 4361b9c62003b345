"""Where servers are written down: other clients' files in all their forms, the desk's own, and both together."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refdesk.config.loading import load
from refdesk.config.models import Config
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.files import jsonc
from refdesk.downstream.files.client_files import CLIENTS, find_project_folder, find_servers, list_client_files
from refdesk.downstream.files.servers_file import (
    ServersFile,
    is_this_desk,
    list_server_files,
    load_servers,
)
from refdesk.errors import ConfigError, InvalidArguments, StorageError
from refdesk.support.fs import read_plain_text
from tests.waiting import PATIENCE_SECONDS

SECRET = "hunter2hunter2"
X = {"command": "x"}


def write_file(folder: Path, content: Any, name: str = "mcp.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def problem(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        ServersFile(path).read({})
    return "\n".join(caught.value.problems)


# JSON with comments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // why\n "b": 2,}', {"a": 1, "b": 2}),
        ("/* all */ [1, 2, /* three, */ ]", [1, 2]),
        ('{"a": "// no /* comment */ ,}",}', {"a": "// no /* comment */ ,}"}),
        ('{"a": "quote \\" // still",}', {"a": 'quote " // still'}),
        ('{"a": "back \\\\", // comment\n}', {"a": "back \\"}),
        ('{"u": "http://h//p",}', {"u": "http://h//p"}),
        ('{"a": [1,\n // last\n ],\n}', {"a": [1]}),
        ('{"a": ",]",}', {"a": ",]"}),
    ],
)
def test_comments_and_last_commas_are_passed_over_but_not_in_strings(text: str, value: Any) -> None:
    assert jsonc.parse(text) == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=8,
    )
)
def test_json_is_what_it_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert jsonc.parse(text) == value
    assert jsonc.parse(f"// said first\n{text}\n/* and last */") == value


@given(st.text(st.sampled_from('"\\/*,{}[]:1 \n')))
@example('"' + '\\"' * 9)
def test_any_text_is_a_value_or_an_error_that_says_where(text: str) -> None:
    try:
        jsonc.parse(text)
        said = "line 1"
    except ValueError as error:
        said = str(error)
    assert "line " in said


@pytest.mark.parametrize("unit", ['"\\', "/*", '\\"', '",', "[", "//", ",   ", "/", '{"a":'])
def test_a_hostile_text_takes_no_longer_than_its_length(unit: str) -> None:
    """What is not linear takes hours."""
    for text in (unit * (300_000 // len(unit)), '"' + unit * (300_000 // len(unit))):
        with pytest.raises(ValueError, match=r"not valid JSON|nested too deeply"):
            jsonc.parse(text)


def test_the_place_of_a_mistake_is_that_in_the_file() -> None:
    with pytest.raises(ValueError, match="line 3, column 4"):
        jsonc.parse('{ /* a\n comment */ "a": 1, // more\n   oops}')


def test_keys_given_twice_are_found_wherever_they_are() -> None:
    value = jsonc.parse('{"a": {"b": 1, "b": 2}, "c": [{"d": 1, "d": 1, "d": 2}], "e": 1}')
    assert sorted(jsonc.find_duplicate_keys(value)) == ["a.b", "c[0].d"]


# Files of other clients


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("claude_desktop_config.json", {"globalShortcut": "", "mcpServers": {"a": X}}),
        (".mcp.json", {"mcpServers": {"a": {**X, "type": "stdio"}}}),
        ("mcp.json", {"inputs": [{"id": "k"}], "servers": {"a": {**X, "gallery": True}}}),
        ("settings.json", {"editor.fontSize": 12, "mcp": {"servers": {"a": X}}}),
        ("zed.json", {"theme": "x", "context_servers": {"a": {"source": "custom", **X}}}),
        ("zed-old.json", {"context_servers": {"a": {"command": {"path": "x", "args": []}, "settings": None}}}),
        ("opencode.json", {"$schema": "s", "mcp": {"a": {"type": "local", "command": ["x"], "enabled": True}}}),
        ("config.toml", 'model = "m"\n[mcp_servers.a]\ncommand = "x"\nstartup_timeout_sec = 20\n'),
        ("gemini.json", {"mcpServers": {"a": {**X, "trust": True, "includeTools": ["t"]}}}),
    ],
)
def test_the_servers_of_every_client_are_found(tmp_path: Path, name: str, content: Any) -> None:
    read = ServersFile(write_file(tmp_path, content, name)).read({})
    assert (read.faults, list(read.servers), read.servers["a"].command) == ([], ["a"], "x")


def test_a_project_of_claude_code_brings_its_servers_and_the_others_are_named(tmp_path: Path) -> None:
    elsewhere = {"mcpServers": {"c": X, "d": X}}
    content = {
        "mcpServers": {"a": X},
        "projects": {str(tmp_path): {"mcpServers": {"b": X}}, "/else": elsewhere, "/no": {}},
    }
    found = find_servers(write_file(tmp_path, content, ".claude.json"), tmp_path)
    assert found is not None
    assert list(found.entries) == ["a", "b"]
    assert found.project_servers == {"/else": ("c", "d")}


def test_a_problem_names_file_server_and_key_and_the_others_are_read(tmp_path: Path) -> None:
    path = write_file(tmp_path, {"servers": {"a": {"comand": "x"}, "b": X, "c": {**X, "env": {"K": "${input:k}"}}}})
    read = ServersFile(path).read({})
    assert [(name, one.enabled) for name, one in read.servers.items()] == [("b", True), ("c", False)]
    assert read.servers["c"].problem == "env.K: cannot prompt for 'k'; write ${NAME} and set that variable"
    assert list(map(str, read.faults)) == [f"{path}: servers.a.comand: unknown key; did you mean command?"]
    assert read.broken.keys() == {"a"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no servers in it"),
        ("{}", "no servers in it"),
        ('{"mcp": 5}', "no servers in it"),
        ("[]", "expected an object with mcpServers"),
        ('{"mcpServers": []}', "mcpServers: expected servers by their names"),
        ('{"mcpServers": {"a": {"command": "x", "command": "y"}}}', "mcpServers.a.command: given twice"),
        ('{"mcpServers": {"a": {}}, "mcpServers": {}}', "mcpServers: given twice"),
        ('{"mcpServers": {', "line 1, column 17: not valid JSON"),
        ('{"mcpServers": {"a": {"max_result_tokens": NaN}}}', "NaN is no number"),
        ("{" * 100, "not valid JSON"),
        ('{"mcpServers":' * 20_000, "nested too deeply"),
        ("1" * 5000, "not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_taken_says_why(tmp_path: Path, content: str, words: str) -> None:
    path = write_file(tmp_path, content)
    assert problem(path).startswith(f"{path}: ")
    assert words in problem(path)


def test_keys_that_a_client_has_twice_elsewhere_are_its_own_affair(tmp_path: Path) -> None:
    path = write_file(tmp_path, '{"theme": 1, "theme": 2, "mcpServers": {"a": {"command": "x"}}}')
    assert list(ServersFile(path).read({}).servers) == ["a"]


def test_files_that_are_none_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    for name, words in (
        ("pipe", "is not a regular file"),
        ("", "cannot be read: Is a directory"),
        ("loop", "cannot be read"),
        ("bytes", "not UTF-8 text"),
    ):
        assert words in problem(tmp_path / name)
    with pytest.raises(ConfigError, match="no such file"):
        find_servers(tmp_path / "none", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = write_file(tmp_path, {"mcpServers": {}})
    path.chmod(0)
    assert "cannot be read: Permission denied" in problem(path)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(write_file(tmp_path, {"mcpServers": {"a": X}}))
    assert list(ServersFile(tmp_path / "link.json").read({}).servers) == ["a"]


def test_a_large_file_is_read_and_one_too_large_is_not(tmp_path: Path) -> None:
    history = [f"// {'x' * 100} /* " for _ in range(100_000)]
    path = write_file(tmp_path, json.dumps({"history": history, "mcpServers": {"a": X}})[:-1] + ",}")
    assert path.stat().st_size > 10_000_000
    assert list(ServersFile(path).read({}).servers) == ["a"]
    with pytest.raises(ValueError, match="is larger than 1,000 bytes"):
        read_plain_text(path, 1000)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["mcpServers", "servers", "mcp", "projects", "command", "a"]), inner, max_size=3
            )
        ),
    )
)
def test_any_layout_gives_servers_or_a_plain_problem(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = write_file(tmp_path_factory.getbasetemp(), content, "any.json")
    try:
        read = ServersFile(path).read({})
    except ConfigError as error:
        said, servers = list(error.problems), {}
    else:
        said, servers = list(map(str, read.faults)), dict(read.servers)
    assert all(line.startswith(f"{path}: ") and line.isprintable() for line in said)
    assert all(isinstance(one, McpServerConfig) for one in servers.values())


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_client_has_a_place_on_every_system(platform: str) -> None:
    files = list_client_files(Path("/home/u"), Path("/srv/project"), platform)
    assert {file.client for file in files} == set(CLIENTS)
    assert len({file.path for file in files}) == len(files)
    assert Path("/home/u/.cursor/mcp.json") in {file.path for file in files}


def test_a_file_in_a_project_belongs_to_it() -> None:
    home = Path("/home/u")
    assert find_project_folder(Path("/srv/project/.vscode/mcp.json"), home) == Path("/srv/project")
    assert find_project_folder(Path("/srv/project/.mcp.json"), home) == Path("/srv/project")
    assert find_project_folder(home / ".cursor" / "mcp.json", home) is None
    assert find_project_folder(home / ".config" / "opencode" / "opencode.json", home) is None
    assert find_project_folder(home / ".claude.json", home) is None


# The desk's own file


@pytest.fixture
def file(tmp_path: Path) -> ServersFile:
    return ServersFile(tmp_path / "data" / "servers.json")


def test_servers_are_added_switched_and_removed(file: ServersFile) -> None:
    assert file.read({}).servers == {}
    file.add({"a": {**X, "env": {"K": "${K}"}}, "b": X})
    assert file.read({"K": SECRET}).servers["a"].env["K"].get_secret_value() == SECRET
    assert SECRET not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.enable("a", on=False)
    assert not file.read({}).servers["a"].enabled
    file.enable("a")
    assert file.read({"K": "x"}).servers["a"].enabled
    file.remove("a")
    assert list(file.read({}).servers) == ["b"]
    assert {path.name for path in file.path.parent.iterdir()} == {"servers.json", ".servers.json.lock"}


def test_a_name_is_taken_once_unless_it_is_replaced(file: ServersFile) -> None:
    file.add({"a": X})
    with pytest.raises(InvalidArguments, match="there is a server named 'a' already"):
        file.add({"b": X, "a": {"command": "y"}})
    assert list(file.entries()) == ["a"]
    file.add({"a": {"command": "y"}}, replace=True)
    assert file.entries() == {"a": {"command": "y"}}


def test_a_server_that_is_not_there_is_told_with_the_nearest(file: ServersFile) -> None:
    file.add({"files": X})
    for change in (file.remove, file.enable):
        with pytest.raises(InvalidArguments, match="did you mean 'files'"):
            change("fils")


def test_a_name_that_will_not_do_is_not_written(file: ServersFile) -> None:
    with pytest.raises(InvalidArguments, match="1 to 64 letters"):
        file.add({"a/b": X})
    assert not file.path.exists()


def test_a_broken_file_is_named_and_not_written_over(file: ServersFile) -> None:
    write_file(file.path.parent, "{", file.path.name)
    for change in (
        lambda: file.add({"a": X}),
        lambda: file.remove("a"),
        lambda: file.enable("a"),
        lambda: file.read({}),
    ):
        with pytest.raises(ConfigError, match="not valid JSON"):
            change()
    assert file.path.read_text() == "{"


def test_a_file_that_is_a_link_stays_one(file: ServersFile, tmp_path: Path) -> None:
    target = write_file(tmp_path / "dotfiles", {"mcpServers": {"a": X}}, "servers.json")
    file.path.parent.mkdir()
    file.path.symlink_to(target)
    file.add({"b": X})
    assert file.path.is_symlink()
    assert list(json.loads(target.read_text())["mcpServers"]) == ["a", "b"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        ServersFile(tmp_path / "data" / "servers.json").add({"a": X})


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(file: ServersFile) -> None:
    program = (
        "import sys; from pathlib import Path; from refdesk.downstream.files.servers_file import ServersFile\n"
        "file = ServersFile(Path(sys.argv[1]))\n"
        "for n in range(6): file.add({f'{sys.argv[2]}-{n}': {'command': 'x'}})\n"
        "file.remove(f'{sys.argv[2]}-0')\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(file.path), name]) for name in "abc"]
    assert [process.wait(PATIENCE_SECONDS) for process in started] == [0, 0, 0]
    assert sorted(file.entries()) == sorted(f"{name}-{n}" for name in "abc" for n in range(1, 6))


# Both together


def desk(tmp_path: Path, yaml: str = "", **overrides: Any) -> Config:
    path = tmp_path / "refdesk.yaml"
    path.write_text(yaml or "project: x\n")
    return load(path, {}, {"data_dir": str(tmp_path / "data"), **overrides})


def test_the_servers_of_the_configuration_come_first_and_win(tmp_path: Path) -> None:
    config = desk(tmp_path, "mcpServers: {b: {command: ours}, c: {command: x}}")
    ServersFile(config.servers_path).add({"a": X, "b": {"command": "theirs"}})
    both = load_servers(config, {})
    assert [(name, one.command) for name, one in both.servers.items()] == [("b", "ours"), ("c", "x"), ("a", "x")]
    assert tuple(map(str, both.warnings)) == (
        f"{config.servers_path}: mcpServers.b: the configuration has a server of this name, which wins",
    )


def test_both_files_are_read_as_they_are_now(tmp_path: Path) -> None:
    config = desk(tmp_path, "mcpServers: {a: {command: x}}")
    assert list_server_files(config) == (tmp_path / "refdesk.yaml", tmp_path / "data" / "servers.json")
    (tmp_path / "refdesk.yaml").write_text("mcpServers: {b: {command: '${Y}'}}")
    assert load_servers(config, {"Y": "why"}).servers["b"].command == "why"
    (tmp_path / "refdesk.yaml").write_text("mcpServers: {b: {comand: x}}")
    with pytest.raises(ConfigError, match=r"refdesk\.yaml: mcpServers\.b\.comand: unknown key"):
        load_servers(config, {})


def test_servers_that_a_program_gave_are_not_looked_for_in_a_file(tmp_path: Path) -> None:
    config = desk(tmp_path, mcpServers={"a": X})
    assert list(load_servers(config, {}).servers) == ["a"]
    assert list_server_files(config) == (config.servers_path,)


def test_the_file_may_be_elsewhere(tmp_path: Path) -> None:
    config = desk(tmp_path, f"downstream: {{servers_file: {tmp_path / 'mine.json'}}}")
    ServersFile(tmp_path / "mine.json").add({"a": X})
    assert list(load_servers(config, {}).servers) == ["a"]


def test_a_server_of_the_file_that_lacks_a_variable_is_disabled_with_the_reason(tmp_path: Path) -> None:
    config = desk(tmp_path)
    ServersFile(config.servers_path).add({"a": {"command": "${NOT_SET}"}, "b": X})
    found = load_servers(config, {}).servers
    assert [(name, one.enabled, one.problem) for name, one in found.items()] == [
        ("a", False, "command: environment variable NOT_SET is not set; set it, or write ${NOT_SET:-default}"),
        ("b", True, None),
    ]


@pytest.mark.parametrize(
    ("entry", "is_own"),
    [
        ({"url": "http://127.0.0.1:8001/mcp"}, True),
        ({"url": "http://localhost:8001/mcp"}, True),
        ({"url": "http://localhost:8002/mcp"}, False),
        ({"url": "http://example.com:8001/mcp"}, False),
        ({"command": "refdesk", "args": ["serve", "--stdio"]}, True),
        ({"command": "/opt/bin/refdesk", "args": ["serve", "--stdio"]}, True),
        ({"command": "python", "args": ["-m", "refdesk", "serve", "--stdio"]}, True),
        ({"command": "uvx", "args": ["refdesk", "serve", "--stdio"]}, True),
        ({"command": "refdesk", "args": ["serve", "--data", "/elsewhere"]}, False),
        ({"command": "refdesk", "args": ["serve", "--data=/own"]}, True),
        ({"command": "refdesk", "args": ["serve"], "env": {"REFDESK_DATA": "/elsewhere"}}, False),
        ({"command": "refdesk", "args": ["serve", "--config", "/other.yaml"]}, False),
        ({"command": "npx", "args": ["mcp-remote", "http://localhost:8001/mcp"]}, True),
        ({"command": "npx", "args": ["-y", "serve"]}, False),
        ({"command": "npx", "args": ["http://[", "http://h:99999"]}, False),
    ],
)
def test_a_desk_knows_itself(entry: dict[str, Any], is_own: bool) -> None:
    config = load(None, {}, {"data_dir": "/own", "mcpServers": {"a": entry}})
    assert is_this_desk(config.mcpServers["a"], config) is is_own
    assert ("a" not in load_servers(config, {}).servers) is is_own


def test_a_desk_behind_itself_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    config = desk(tmp_path, "mcpServers: {me: {url: 'http://localhost:8001/mcp'}}")
    assert tuple(map(str, load_servers(config, {}).warnings)) == (
        "mcpServers.me: this is the desk itself, so it is left out",
    )
