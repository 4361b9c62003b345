"""Every example on the page about the client is run as it stands, against the servers that it names."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from refdesk.downstream.client.error_mapping import ERRORS
from tests.conftest import Serve
from tests.processes import environment, run

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "use-the-client.md").read_text("utf-8")
FENCED = re.findall(r"^```python(?: title=\"([\w.]+)\")?\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {name: code for name, code in FENCED if name}
EXAMPLES = [code for name, code in FENCED if not name]

PRINTED = [
    r"\['add', 'greet', 'count'\]\n5 \{'result': 5\} False\n",
    r"refdesk 2025-11-25 True\n.*scripts/serve.*greeter Running\n",
    r"Hello Ada\n1(\.0)? of 3(\.0)?\n2.*\n3.*\n",
    r"E201 .* Try again True\n",
    r"doc-\w+ \d+\n",
    r"convert_pdf 180.0\n\{'code': 'E204', .*'originalMCPCode': -32601\}\n",
]


def test_what_is_expected_is_one_text_for_each_example() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.slow
async def test_the_examples_print_what_they_are_to(serve: Serve, tmp_path: Path) -> None:
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, "utf-8")
    (tmp_path / "report.md").write_text("# Report\n\nNo problems found.\n", "utf-8")
    async with serve() as server:

        async def check(code: str, expected: str) -> None:
            code = code.replace("127.0.0.1:8001", f"127.0.0.1:{server.port}")
            env = environment(tmp_path) | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
            ended = await run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path, env=env, seconds=240)
            assert (ended.code, ended.err) == (0, ""), code
            assert re.fullmatch(expected, ended.out, re.DOTALL), ended.out

        await asyncio.gather(*map(check, EXAMPLES, PRINTED))


def test_every_code_of_the_catalogue_is_on_the_page() -> None:
    for code, entry in ERRORS.items():
        row = re.search(rf"^\| {entry.code} \|.*$", PAGE, re.MULTILINE)
        assert row is not None
        assert str(code) in row[0]
        assert row[0].endswith("| yes |" if entry.retryable else "| no |")
