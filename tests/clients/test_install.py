"""`refdesk install` against the real clients: in a home that is new, they list the desk as connected."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forked
from tests.clients.conftest import Node, installed_client
from tests.processes import Ended, Server, environment, run

pytestmark = [pytest.mark.anyio, pytest.mark.node, pytest.mark.timeout(300)]

QUIET = {
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
    "ANTHROPIC_API_KEY": "stub",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "GEMINI_API_KEY": "stub",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
}
"""Without these the clients would look for their real services, and wait for them, or for a person's trust."""


@dataclass(frozen=True)
class Home:
    """A home that no client has been in, where the desk is set up and a client asked what it has."""

    folder: Path
    node: Path

    async def refdesk(self, *words: str) -> Ended:
        """Run a command of ours; it has to succeed."""
        env = environment(self.folder, REFDESK_DATA=str(self.folder / "data"), REFDESK__EMBEDDING__SOURCE="none")
        ended = await run(*forked.refdesk(), *words, cwd=self.folder, env=env)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        return ended

    async def listed(self, program: Path, **more: str) -> str:
        """The line of `CLIENT mcp list` that names the desk."""
        env = environment(self.folder, **QUIET, **more)
        ended = await run(self.node, program, "mcp", "list", cwd=self.folder, env=env, seconds=100)
        lines = [line for line in f"{ended.out}\n{ended.err}".splitlines() if line.lstrip("✓ ").startswith("refdesk")]
        assert lines, f"{ended.out}\n{ended.err}"
        return lines[-1]


@pytest.fixture
def home(node: Node, tmp_path: Path) -> Home:
    return Home(tmp_path, node.program)


async def program(name: str, size: str, *path: str) -> Path:
    """A client from npm, where it is installed or may be."""
    return (await installed_client(name, size)).modules.joinpath(*path)


async def claude_code() -> Path:
    return await program("claude", "350 MB", "@anthropic-ai", "claude-code", "cli-wrapper.cjs")


async def test_claude_code_is_connected_over_http(home: Home, server: Server) -> None:
    claude = await claude_code()
    said = await home.refdesk("install", "claude-code", "--url", server.url, "--yes")
    assert "`claude mcp list` shows it as connected" in said.out
    line = await home.listed(claude)
    assert f"{server.url}/mcp" in line
    assert "Connected" in line
    # The client has written to its file meanwhile; what is its own stays.
    before = json.loads((home.folder / ".claude.json").read_text())
    await home.refdesk("uninstall", "claude-code", "--yes")
    assert json.loads((home.folder / ".claude.json").read_text()) == {**before, "mcpServers": {}}


async def test_claude_code_starts_the_desk_itself(home: Home) -> None:
    claude = await claude_code()
    await home.refdesk("install", "claude-code", "--stdio", "--data", "data", "--yes")
    line = await home.listed(claude, MCP_TIMEOUT="90000", REFDESK__EMBEDDING__SOURCE="none")
    assert "serve --stdio" in line
    assert "Connected" in line


async def test_codex_has_it_with_the_variable_of_its_key(home: Home, server: Server) -> None:
    codex = await program("codex", "440 MB", "@openai", "codex", "bin", "codex.js")
    await home.refdesk("install", "codex", "--url", server.url, "--key-env", "DESK_KEY", "--yes")
    line = await home.listed(codex, DESK_KEY="any")
    assert [f"{server.url}/mcp", "DESK_KEY", "enabled"] == line.split()[1:4]


async def test_gemini_cli_is_connected(home: Home, server: Server) -> None:
    gemini = await program("gemini", "100 MB", "@google", "gemini-cli", "bundle", "gemini.js")
    await home.refdesk("install", "gemini", "--url", server.url, "--yes")
    trusted = home.folder / ".gemini" / "trustedFolders.json"
    trusted.write_text(json.dumps({str(home.folder): "TRUST_FOLDER"}))
    line = await home.listed(gemini)
    assert f"{server.url}/mcp" in line
    assert "Connected" in line
