"""`refdesk doctor`: each part that can be broken is broken, and what it says of it is looked at."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import to_thread

from refdesk.cli import doctor, doctor_checks, main
from refdesk.cli.doctor import FUNCTIONS
from refdesk.cli.doctor_checks import EXTRAS
from refdesk.cli.parser import CHECKS
from refdesk.version import __version__
from tests.ports import find_free_port
from tests.processes import started_server

Examine = Callable[..., dict[str, list[tuple[str, str]]]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def examine(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """The command with `--json`; answers states and sentences by check."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REFDESK_DATA", str(data))
    monkeypatch.setenv("REFDESK__EMBEDDING__SOURCE", "none")
    monkeypatch.setenv("MCP_SERVER_PORT", str(find_free_port()))

    def command(*only: str, code: int = 0) -> dict[str, list[tuple[str, str]]]:
        capsys.readouterr()
        words = [word for name in only for word in ("--only", name)]
        ended = main(["doctor", "--json", "--timeout", "100", *words])
        told = json.loads(capsys.readouterr().out)
        assert ended == code, told
        assert told["ok"] == (code == 0)
        assert all(one["fix"] for one in told["findings"] if one["state"] != "ok")
        found: dict[str, list[tuple[str, str]]] = {}
        for one in told["findings"]:
            found.setdefault(one["check"], []).append((one["state"], one["text"]))
        return found

    return command


def add_a_document(data: Path, tmp_path: Path) -> Path:
    (tmp_path / "tea.md").write_text("# Tea\n\nSteep it.")
    assert main(["add", str(tmp_path / "tea.md"), "--data", str(data), "--collection", "kitchen"]) == 0
    return data / "tenants" / "n-default"


def test_a_new_desk_is_well_and_looking_at_it_makes_nothing(examine: Examine, data: Path) -> None:
    found = examine()
    assert list(found) == list(CHECKS)
    assert {state for findings in found.values() for state, _ in findings} == {"ok"}
    assert not data.exists()


def test_every_check_is_one_that_is_run() -> None:
    functions = [name for name in vars(doctor_checks) if name.startswith("check_")]
    assert sorted(functions) == sorted(f"check_{name}" for name in CHECKS)


def test_an_extra_is_known_by_a_package_of_its_own() -> None:
    wanted = [line.replace(" ", "").replace('"', "'") for line in metadata.requires("refdesk") or ()]
    for extra, package in EXTRAS.items():
        assert any(re.match(rf"{package}[^\w-].*extra=='{extra}'", line) for line in wanted), extra


def test_people_are_told_in_lines(examine: Examine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--only", "python", "--only", "data"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"ok    python  Refdesk {__version__}")
    assert second.startswith("ok    data")
    assert last == "No problems found."


def test_a_configuration_that_cannot_be_used_stops_no_other_check(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "refdesk.yaml").write_text("server: {prot: 1}\nauth: {required: true}\n")
    found = examine("config", "data", "python", code=1)
    assert [state for state, _ in found["config"]] == ["fail", "fail", "warn"]
    assert "did you mean server.port?" in found["config"][0][1]
    assert found["data"][0][0] == found["python"][0][0] == "ok"


def test_what_is_looked_at_alone_does_not_hide_that_the_configuration_cannot_be_used(
    examine: Examine, tmp_path: Path
) -> None:
    (tmp_path / "refdesk.yaml").write_text("cache: {type: redis, url: redis://127.0.0.1:1}\n")
    assert list(examine("cache", code=1)) == ["config", "cache"]


def test_a_configuration_that_is_not_there_is_not_to_be_edited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--only", "config", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "`refdesk init` writes one" in capsys.readouterr().out


def test_a_check_that_breaks_or_hangs_is_a_finding(examine: Examine) -> None:
    def broken(context: object) -> Any:
        raise ZeroDivisionError("oh")

    async def endless(context: object) -> Any:
        await asyncio.Event().wait()

    context = doctor._build_context(SimpleNamespace(config=None, data=None, timeout=0.2))
    found = asyncio.run(doctor.run_checks(context, ["keys", "cache"], {"keys": broken, "cache": endless}))
    assert "ZeroDivisionError: oh" in found["keys"][0].text
    assert found["cache"][0].text == "did not finish within 0.2 seconds"
    patient = replace(context, timeout=60)
    beside = asyncio.run(doctor.run_checks(patient, ["keys", "python"], {**FUNCTIONS, "keys": broken}))
    assert beside["python"][0].state == "ok"


def test_documents_are_counted_and_damage_is_named(examine: Examine, data: Path, tmp_path: Path) -> None:
    folder = add_a_document(data, tmp_path)
    assert examine("engine", "locks") == {
        "engine": [("ok", "1 document in 1 collection")],
        "locks": [("ok", "no process is writing")],
    }
    shutil.rmtree(folder / "fulltext")
    assert "lacks the latest changes" in examine("engine")["engine"][1][1]
    with sqlite3.connect(folder / "knowledge.db") as database:
        database.execute("UPDATE documents SET stage = 'queued'")
    assert examine("locks")["locks"] == [("warn", "1 document queued, but no process is indexing")]
    with sqlite3.connect(folder / "knowledge.db") as database:
        database.execute("PRAGMA user_version = 99")
    assert "another version" in examine("engine", code=1)["engine"][0][1]
    database.close()
    for file in folder.glob("knowledge.db*"):
        file.unlink()
    (folder / "knowledge.db").write_bytes(b"nonsense" * 1000)
    assert "cannot be read: file is not a database" in examine("engine", code=1)["engine"][0][1]


def test_a_lost_record_beside_its_indexes_is_named_with_its_remedy(
    examine: Examine, data: Path, tmp_path: Path
) -> None:
    folder = add_a_document(data, tmp_path)
    for file in folder.glob("knowledge.db*"):
        file.unlink()
    [(state, text, *_)] = examine("engine", code=1)["engine"]
    assert state == "fail"
    assert f"{folder / 'knowledge.db'} is missing or empty, but there is fulltext" in text


def test_the_data_folder_has_to_be_one(examine: Examine, data: Path) -> None:
    data.write_text("")
    assert examine("data", code=1)["data"] == [("fail", f"{data} is not a folder")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_data_folder_has_to_be_ours(examine: Examine, data: Path) -> None:
    data.mkdir(mode=0o500)
    assert examine("data", code=1)["data"] == [("fail", f"{data} is not writable")]


def test_services_that_are_not_there_are_named(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFDESK__CACHE__TYPE", "redis")
    monkeypatch.setenv("REFDESK__CACHE__REDIS__URL", "redis://:secret@127.0.0.1:1")
    monkeypatch.setenv("REFDESK__ANSWERS__API_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("REFDESK__EMBEDDING__SOURCE", "onnx")
    monkeypatch.setenv("REFDESK__EMBEDDING__MODEL_PATH", "/nowhere")
    found = examine("cache", "answers", "embedding", code=1)
    assert {findings[0][0] for findings in found.values()} == {"fail"}
    assert "secret" not in str(found)
    assert "/nowhere has no model.onnx" in found["embedding"][0][1]


def test_an_r2r_that_is_not_there_is_named(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFDESK__R2R__API_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("REFDESK__R2R__API_KEY", "secret-of-r2r")
    found = examine("r2r", "embedding", "engine", code=1)
    assert found["r2r"][0][0] == "fail"
    assert "secret-of-r2r" not in str(found)
    assert found["embedding"] == [("ok", "not needed: R2R uses its own model")]


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "small"}]}'
        self.send_response(200 if self.headers["Authorization"] == "Bearer right" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the terminal."""


def test_a_model_for_answers_is_looked_for_without_writing_one(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setenv("REFDESK__ANSWERS__API_URL", f"http://127.0.0.1:{http.server_port}/v1")
        assert "rejects the key" in examine("answers", code=1)["answers"][0][1]
        monkeypatch.setenv("REFDESK__ANSWERS__API_KEY", "right")
        assert examine("answers")["answers"][0][0] == "warn"
        monkeypatch.setenv("REFDESK__ANSWERS__MODEL", "small")
        assert examine("answers")["answers"][0][1].endswith("offers small")
        monkeypatch.setenv("MCP_SERVER_PORT", str(http.server_port))
        assert "another program answers" in examine("port", code=1)["port"][0][1]
        http.shutdown()


def test_servers_behind_the_desk_are_tried(examine: Examine, data: Path) -> None:
    good = ("--cwd", str(ROOT), "--", sys.executable, "-m", "tests.downstream.servers.talkative", "stdio")
    assert main(["servers", "add", "good", *good]) == 0
    assert main(["servers", "add", "gone", "--", "no-such-program-here"]) == 0
    assert main(["servers", "add", "off", "http://127.0.0.1:1/mcp"]) == 0
    assert main(["servers", "disable", "off"]) == 0
    found = dict(enumerate(examine("servers", code=1)["servers"]))
    assert found[0][0] == "ok"
    assert "tools, connected in" in found[0][1]
    assert found[1] == ("fail", "gone: program 'no-such-program-here' not found")
    assert found[2] == ("ok", "off: disabled")


def test_keys_that_nobody_asks_for_are_pointed_out(
    examine: Examine, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["keys", "make", "ci"]) == 0
    assert examine("keys")["keys"] == [("warn", "there is 1 key, but none is required")]
    monkeypatch.setenv("MCP_AUTH_REQUIRED", "true")
    (data / "keys.json").chmod(0o644)
    assert examine("keys")["keys"] == [
        ("warn", f"other users on this machine can read {data / 'keys.json'}"),
        ("ok", "a key is required; there is 1"),
    ]


def test_a_client_that_calls_another_place_is_pointed_out(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"refdesk": {"url": "http://127.0.0.1:9/mcp"}}}')
    (tmp_path / "home" / ".cursor").mkdir(parents=True)
    (tmp_path / "home" / ".cursor" / "mcp.json").write_text('{"mcpServers": {"refdesk": {"command": "/gone/refdesk"}}}')
    states = [state for state, _ in examine("clients", code=1)["clients"]]
    assert states == ["warn", "fail"]


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_desk_that_runs_is_known_and_not_disturbed(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_server(tmp_path) as server:
        monkeypatch.setenv("MCP_SERVER_PORT", server.url.rpartition(":")[2])
        found = await to_thread.run_sync(examine)
        assert found["port"] == [("ok", f"Refdesk {__version__} runs at {server.url}/mcp")]
        assert found["console"] == [("ok", f"at {server.url}/console")]
        await server.stop()
    assert server.complaints() == []
