"""The console's JavaScript under TypeScript's strict type checks, by its JSDoc comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import Node

pytestmark = [pytest.mark.anyio, pytest.mark.node, pytest.mark.timeout(300)]

PAGES = Path(__file__).parents[2] / "src" / "refdesk" / "console" / "pages"
OPTIONS = (
    "--noEmit --strict --allowJs --checkJs --target es2022 --module esnext --moduleResolution bundler "
    "--lib es2023,dom,dom.iterable"
).split()


async def test_modules_of_the_console_pass_strict_type_checks(node: Node, tmp_path: Path) -> None:
    compiler = node.packages.modules / "typescript" / "bin" / "tsc"
    ended = await node.run(compiler, *OPTIONS, *map(str, sorted(PAGES.rglob("*.js"))), home=tmp_path)
    assert ended.code == 0, ended.out
