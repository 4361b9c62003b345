"""Every block of every page is run, or checked and not run for a reason that is written down."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from refdesk.config.loading import load
from tests.clients.npm import Unavailable
from tests.docs.blocks import OUTPUT, ROOT, Block, blocks_of, pages
from tests.docs.checkout import fresh_checkout
from tests.docs.given import BEFORE, DESKS, furnish, leave_behind
from tests.docs.not_run import REASONS, check, options_of_inline, why
from tests.docs.shown import difference
from tests.docs.sites import running_site
from tests.docs.standins import install_what_npx_starts
from tests.docs.tally import ONLY_CHECKED, TALLY
from tests.docs.workplace import Outcome, Workplace
from tests.documents.web import Web
from tests.programs import find_program

pytestmark = pytest.mark.anyio

ELSEWHERE = {"docs/how-to/use-the-client.md": "tests/docs/test_client_page.py"}
"""Pages whose blocks have a test of their own, which holds them to more."""

SERVED_BY_NPX = {"docs/how-to/put-servers-behind-it.md"}
"""Pages whose commands start a server by npx; other commands with it are checked where it cannot be had."""

NOT_COMPARED = {"is from another set-up", "is an excerpt of a longer run", "is what goes wrong"}
"""Why a shown output is not held against what the block above it printed."""

PAGES = [page for page in pages() if page not in ELSEWHERE]
COMMANDS = [page for page in PAGES if any(block.is_shell or block.language == "python" for block in blocks_of(page))]


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Web]:
    """What stands for the Internet."""
    async with running_site() as web:
        yield web


@pytest.fixture(scope="module")
async def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A copy of the repository, set up by its own script, where packages can be had."""
    return await fresh_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
async def npx() -> str:
    """The reason why what npx starts is missing; empty when it is there."""
    try:
        await install_what_npx_starts()
    except Unavailable as why:
        return str(why)
    return ""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is noted which commands have been run on another page."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first page waits for the checkout to be set up
@pytest.mark.parametrize("page", COMMANDS)
async def test_the_commands_of_a_page_work(
    page: str, shared: Path, site: Web, checkout: Path | None, npx: str, tmp_path: Path
) -> None:
    if npx and page in SERVED_BY_NPX:
        pytest.skip(npx)
    place = Workplace(tmp_path / "refdesk", shared, site.port, checkout)
    place.prepare()
    furnish(place.folder, place.home)
    leave_behind(place.folder, place.home, site.port)
    blocks = blocks_of(page)
    if any("curl" in block.text for block in blocks) or "curl" in BEFORE.get(page, ""):
        find_program("curl")
    _write_titled(blocks, place.folder)
    commands = [block for block in blocks if (block.is_shell or block.language == "python") and not block.title]
    kept_back = [block for block in commands if block.reason("not run")]
    assert {block.reason("not run") for block in kept_back} <= REASONS
    for block in kept_back:
        _hold_to_checks(await place.run([block], only_check=True), block.reason("not run"))
    await _run_and_compare(place, blocks, [block for block in commands if block not in kept_back])


async def _run_and_compare(place: Workplace, blocks: Sequence[Block], wanted: Sequence[Block]) -> None:
    """Run the blocks, with a desk when one of them speaks to it, and hold what they print against what is shown."""
    if not wanted:
        return
    page = wanted[0].page
    before = BEFORE.get(page, "")
    if any("127.0.0.1:8001" in block.text for block in wanted):
        async with place.desk(**DESKS.get(page, {})):
            outcome = await place.run(wanted, before=before)
    else:
        outcome = await place.run(wanted, before=before)
    _hold_to_checks(outcome)
    TALLY["referred"] += len(outcome.referred)
    TALLY["run"] += len(outcome.run) - len(outcome.not_run) - len(outcome.referred)
    assert outcome.failed == [], outcome.errors
    printed = dict(zip([block.line for block in wanted], outcome.printed, strict=True))
    for above, block in pairwise(blocks):
        if above.line in printed and _is_output_of(above, block):
            text = printed[above.line] + outcome.errors
            TALLY["compared"] += 1
            assert difference(block.text, text) is None, f"{block.place} is not what was printed:\n{text}"


def _hold_to_checks(outcome: Outcome, reason: str = "") -> None:
    """What stand-ins took the place of has a reason, its block's or its own, and is right as far as one can tell."""
    for words in outcome.not_run:
        assert (reason or why(words)) in REASONS
        TALLY[reason or why(words)] += 1
        ONLY_CHECKED.append(f"{reason or why(words)}: {' '.join(words)}")
        assert check(words) is None, words


def _is_output_of(above: Block, block: Block) -> bool:
    """Whether the block shows what the one above it prints: under the same heading, and no client's file."""
    is_output = block.language in OUTPUT and not block.title and not _is_of_a_client(block)
    return is_output and above.heading == block.heading and not _is_excused(block)


def _is_of_a_client(block: Block) -> bool:
    return block.language == "json" and re.search(r'"(mcpServers|servers|mcp)":', block.text) is not None


def _is_excused(block: Block) -> bool:
    reason = block.reason("not compared")
    assert not reason or reason in NOT_COMPARED, f"{block.place}: {reason!r} is not one of {NOT_COMPARED}"
    return bool(reason)


def _write_titled(blocks: Sequence[Block], folder: Path) -> None:
    """A block with a file name as its title is that file."""
    for block in blocks:
        if re.fullmatch(r"[\w./-]+\.\w+", block.title):
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    known = {"sh", "bash", "console", "python", "yaml", "json", "toml", "text", "ini", "javascript", "diff"}
    assert [block.place for block in blocks_of(page) if block.language not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_data_can_be_read(page: str) -> None:
    for block in blocks_of(page):
        try:
            READERS.get(block.language, str)(block.text)
        except ValueError as error:
            pytest.fail(f"{block.place}: {error}")


def _read_yaml(text: str) -> None:
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


READERS: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "yaml": _read_yaml}


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "yaml" for b in blocks_of(page))])
def test_every_configuration_on_a_page_is_taken(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("", "utf-8")  # one of them names such a file
    for block in blocks_of(page):
        if block.language == "yaml":
            written = yaml.safe_load(block.text)
            if _is_ours(written):
                (tmp_path / "refdesk.yaml").write_text(block.text, "utf-8")
                load(tmp_path / "refdesk.yaml", _filled_in(block.text), {"data_dir": str(tmp_path / "data")})


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_a_client_can_be_used(page: str) -> None:
    for block in filter(_is_of_a_client, blocks_of(page)):
        written = json.loads(block.text)
        for server in (written.get("mcpServers") or written.get("servers") or written["mcp"]).values():
            words = [server.get("command", ""), *server.get("args", [])]
            assert server.get("url") or server.get("httpUrl") or words[0], block.place
            if "serve" in words:
                assert check(["refdesk", *words[words.index("serve") :]]) is None, block.place


def _is_ours(written: Any) -> bool:
    """Whether it is a configuration of Refdesk, and not of Prometheus, Compose or Kubernetes."""
    foreign = {"scrape_configs", "apiVersion", "services", "groups", "jobs", "replicaCount"}
    return isinstance(written, dict) and not foreign & set(written)


def _filled_in(text: str) -> dict[str, str]:
    """A value for every variable that the text takes from the environment, and a key where one is made elsewhere."""
    names = re.findall(r"\$\{(\w+)\}", text)
    if "required: true" in text and not re.search(r"\b(keys|oauth):", text):
        names.append("MCP_API_KEY")
    return {name: f"value-of-{name.lower()}" for name in names}


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_running_text_have_these_options(page: str) -> None:
    assert options_of_inline((ROOT / page).read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_after_a_prompt_are_right(page: str) -> None:
    for block in blocks_of(page):
        for line in re.findall(r"^\$ (?:\.venv/bin/)?(.+)$", block.text if block.language == "text" else "", re.M):
            assert check(line.split()) is None, block.place


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text("utf-8")
