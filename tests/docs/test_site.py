"""The manual as a site, and as plain Markdown: it builds without a warning, needs no other place, links lead on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages

LOADED = re.compile(r"""<(?:link|script|img|source|iframe)\b[^>]*?\b(?:href|src)=["']?(https?:)?//""")
"""What a browser would fetch by itself from another place; a link that one clicks on is no such thing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning, such as for a link that leads nowhere or a page that is in no menu, is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    made = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")} - {"404.md"}
    assert made == {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    for page in site.rglob("*.html"):
        text = re.sub(r'<link rel="canonical"[^>]*>', "", page.read_text("utf-8"))
        assert LOADED.search(text) is None, page.name
    for style in site.rglob("*.css"):
        assert "@import" not in style.read_text("utf-8"), style.name


@pytest.mark.slow
def test_pictures_tables_and_blocks_are_what_they_are_to_be(site: Path) -> None:
    performance = (site / "explanation/performance.html").read_text("utf-8")
    source = (ROOT / "docs/explanation/performance.md").read_text("utf-8")
    assert performance.count("<table>") == source.count("\n|---") > 0
    assert '<img alt="Bars: CPU microseconds a call for each server"' in performance
    assert "not compared" not in re.sub(r"<!--.*?-->", "", (site / "how-to/configure.html").read_text("utf-8"))
    assert "```" not in (site / "how-to/search-and-ask.html").read_text("utf-8")


@pytest.mark.parametrize("page", pages())
def test_links_of_a_page_lead_to_files_and_headings_that_are_there(page: str) -> None:
    for target in _links(page):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in _anchors(file), f"{page} links to {target}"


def _links(page: str) -> list[str]:
    """Where it links to within the repository, outside of blocks."""
    text = (ROOT / page).read_text("utf-8")
    text = re.sub(r"^ *(`{3,}).*?^ *\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))
    return [target for target in found if not re.match(r"\w+:", target)]


def _anchors(file: Path) -> set[str]:
    """The anchors of headings, as both GitHub and the site make them."""
    text = file.read_text("utf-8")
    for block in blocks_of(file.relative_to(ROOT).as_posix()):
        text = text.replace(block.text, "")
    return {_slug(heading) for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)}


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower())
    return re.sub(r"[ -]+", "-", kept.strip())


def test_pages_need_nothing_but_markdown() -> None:
    """They are read as they are too: by people on a code host, and by every new desk, which answers from them."""
    for page in pages():
        text = re.sub(r"^ *(`{3,}).*?^ *\1$", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert re.search(r"^(!!!|\?\?\?|===|:::|--8<--)|\{%|\{\{", text, re.MULTILINE) is None, page


def test_pictures_are_small_and_used() -> None:
    texts = "".join((ROOT / page).read_text("utf-8") for page in pages()) + (ROOT / "mkdocs.yml").read_text("utf-8")
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size < 150_000, picture.name
        assert f"images/{picture.name}" in texts, f"{picture.name} is shown on no page"
