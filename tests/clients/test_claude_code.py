"""Claude Code against a server process, with a model that a script speaks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.conftest import Node, installed_client
from tests.clients.stub_model import Say, Use, stub_model
from tests.processes import Ended, Server, environment, run

pytestmark = [pytest.mark.anyio, pytest.mark.node, pytest.mark.timeout(300)]

SEARCH = "mcp__refdesk__search_documentation"
QUESTION = "How do I start the server?"
# Without an address it would look for the real service, and wait for it.
NO_MODEL = "http://127.0.0.1:9"


@dataclass(frozen=True)
class ClaudeCode:
    """The command `claude`, in a home that it has never been in."""

    node: Path
    program: Path
    home: Path

    async def __call__(self, *arguments: str, model: str = NO_MODEL) -> Ended:
        """Run it to its end; it has to succeed."""
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        env = environment(self.home, ANTHROPIC_BASE_URL=model, ANTHROPIC_API_KEY="stub", **quiet)
        ended = await run(self.node, self.program, *arguments, cwd=self.home, env=env)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        return ended


@pytest.fixture(scope="session")
async def launcher() -> Path:
    """The program that starts it where npm ran no install scripts."""
    packages = await installed_client("claude", "350 MB")
    return packages.modules / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"


@pytest.fixture
async def claude(launcher: Path, node: Node, server: Server, tmp_path: Path) -> ClaudeCode:
    """Claude Code that has been told of the server, as the manual says."""
    claude = ClaudeCode(node.program, launcher, tmp_path)
    await claude("mcp", "add", "--transport", "http", "refdesk", f"{server.url}/mcp")
    return claude


async def test_it_lists_the_server_as_connected(claude: ClaudeCode, server: Server) -> None:
    listed = await claude("mcp", "list")
    (line,) = (line for line in listed.out.splitlines() if line.startswith("refdesk:"))
    assert f"{server.url}/mcp" in line
    assert "Connected" in line


async def test_a_turn_calls_the_search_and_takes_its_passages_to_the_model(claude: ClaudeCode, server: Server) -> None:
    before = await server.calls_of("search_documentation")
    async with stub_model(Use(SEARCH, {"query": QUESTION}), Say("Run scripts/serve.")) as model:
        answered = await claude("-p", QUESTION, "--allowedTools", SEARCH, model=model.url)
    assert answered.out.strip() == "Run scripts/serve."
    (passages,) = model.tool_results()
    assert "Run `scripts/serve` in a checkout." in passages
    assert "Source: refdesk/index.md" in passages
    assert await server.calls_of("search_documentation") == before + 1


async def test_the_search_is_offered_without_having_to_be_looked_for(claude: ClaudeCode) -> None:
    async with stub_model(Say("Nothing to do.")) as model:
        await claude("-p", "Hello", model=model.url)
    assert SEARCH in model.tools_offered()


async def test_the_prompt_is_a_command_that_puts_the_question_to_the_model(claude: ClaudeCode) -> None:
    async with stub_model(Say("Press Ctrl-C.")) as model:
        answered = await claude("-p", "/mcp__refdesk__answer_from_docs stopping", model=model.url)
    assert answered.out.strip() == "Press Ctrl-C."
    assert "stopping" in model.heard()
    assert "search_documentation" in model.heard()
