"""Examples, run as their readers run them: from the folder of the project, as programs of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.processes import environment, run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


async def run_example(name: str, *arguments: str, home: Path, **more: str) -> str:
    """What an example prints; it has to end well and to complain of nothing."""
    return await run_program(sys.executable, str(EXAMPLES / name), *arguments, home=home, **more)


async def run_program(*command: str, home: Path, **more: str) -> str:
    """What a program prints; it has to end well."""
    ended = await run(*command, cwd=ROOT, env=environment(home, **more))
    assert ended.code == 0, f"{command} ended with {ended.code}\n{ended.out}\n{ended.err}"
    assert "Traceback" not in ended.err, ended.err
    return ended.out
