"""The plugin for Claude Code: it is valid, installs from its marketplace without a network, and its server connects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refdesk.app import Desk
from tests.clients.npm import CACHE, Packages, Unavailable, suitable_node
from tests.clients.stub_model import Say, stub_model
from tests.packaging.programs import ROOT
from tests.processes import REFDESK, Ended, environment, run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

PLUGIN = ROOT / "plugins" / "claude-code"
CLIENTS = ROOT / "tests" / "clients"
SKILLS = sorted(PLUGIN.glob("skills/*/SKILL.md"))

NO_MODEL = "http://127.0.0.1:9"
"""Without an address it would look for the real service, and wait for it."""

LONGEST_SKILL = 2_400
"""Characters; each costs an agent that uses it some 600 tokens at most."""


class Claude:
    """Claude Code in a new home, with a command `refdesk` on its path, as an installation has it."""

    def __init__(self, *command: Path, home: Path) -> None:
        self._command = command
        self.home = home
        (home / "bin").mkdir()
        shim = home / "bin" / "refdesk"
        shim.write_text(f'#!/bin/sh\nexec {" ".join(REFDESK)} "$@"\n')
        shim.chmod(0o755)

    async def __call__(self, *arguments: str | Path, model: str = NO_MODEL) -> Ended:
        """Run it to its end; it has to succeed."""
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        env = environment(self.home, ANTHROPIC_BASE_URL=model, ANTHROPIC_API_KEY="stub", **quiet)
        env |= {"PATH": f"{self.home / 'bin'}:{env['PATH']}", "REFDESK_DATA": str(self.home / "data")}
        ended = await run(*self._command, *arguments, cwd=self.home, env=env)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        return ended


@pytest.fixture
async def claude(tmp_path: Path) -> Claude:
    packages = Packages(CLIENTS / "claude", CACHE / "clients-claude")
    if not packages.are_installed():
        pytest.skip("claude is not installed (350 MB; REFDESK_TEST_CLAUDE=1 installs it)")
    try:
        node = await suitable_node(Packages(CLIENTS / "node", CACHE / "clients"))
    except Unavailable as why:
        pytest.skip(str(why))
    return Claude(node, packages.modules / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs", home=tmp_path)


@pytest.mark.node
async def test_it_is_valid_and_so_is_its_marketplace(claude: Claude) -> None:
    assert "Validation passed" in (await claude("plugin", "validate", PLUGIN)).out
    assert "Validation passed" in (await claude("plugin", "validate", ROOT)).out


@pytest.mark.node
async def test_it_installs_from_the_marketplace_and_its_server_connects(claude: Claude) -> None:
    await claude("plugin", "marketplace", "add", ROOT)
    await claude("plugin", "install", "refdesk@refdesk")
    told = (await claude("plugin", "details", "refdesk")).out
    assert f"Skills ({len(SKILLS)})" in told
    listed = (await claude("mcp", "list")).out
    assert re.search(r"plugin:refdesk:refdesk: .*Connected", listed), listed


@pytest.mark.node
async def test_a_session_that_is_given_the_folder_knows_the_skills(claude: Claude) -> None:
    async with stub_model(Say("Nothing to do.")) as model:
        await claude("--plugin-dir", PLUGIN, "-p", "Hello", model=model.url)
    assert all(f"refdesk:{skill.parent.name}" in model.heard() for skill in SKILLS)


async def test_its_skills_name_only_tools_and_arguments_that_exist(desk: Desk) -> None:
    schemas = {tool.name: tool.input_schema for tool in desk.registry.tools.values()}
    arguments = {name for schema in schemas.values() for name in schema["properties"]}
    for skill in SKILLS:
        named = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)(?:[.:][^`]*)?`", skill.read_text("utf-8"))
        assert named, f"{skill.parent.name} names no tool"
        assert set(named) <= set(schemas) | arguments


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_is_short_and_says_when_to_use_it(skill: Path) -> None:
    text = skill.read_text("utf-8")
    _, head, body = text.split("---\n", 2)
    assert f"name: {skill.parent.name}\n" in head
    assert "Use " in head
    assert len(body) < LONGEST_SKILL


def test_the_extension_for_gemini_starts_the_same_server() -> None:
    extension = json.loads((ROOT / "gemini-extension.json").read_text("utf-8"))
    assert extension["mcpServers"] == json.loads((PLUGIN / ".mcp.json").read_text("utf-8"))["mcpServers"]
