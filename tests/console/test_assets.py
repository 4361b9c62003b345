"""The console's files: found by their exact names, and by nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refdesk.inbound.console_routes import Assets
from tests.conftest import Serve

PAGES = Path(__file__).parents[2] / "src/refdesk/console/pages"


@pytest.fixture
def assets(tmp_path: Path) -> Assets:
    folder = tmp_path / "pages"
    (folder / "views").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "app.js").write_text("export {};")
    (folder / "views" / "search.js").write_text("export {};")
    (folder / "notes.py").write_text("not for browsers")
    (tmp_path / "secret.txt").write_text("outside")
    return Assets(folder)


def test_files_have_their_types_and_tags(assets: Assets) -> None:
    index, script = assets.find("index.html"), assets.find("views/search.js")
    assert index is not None
    assert script is not None
    assert index.media_type == b"text/html; charset=utf-8"
    assert (script.media_type, script.body) == (b"text/javascript; charset=utf-8", b"export {};")
    assert index.etag != script.etag
    assert script.etag == getattr(assets.find("app.js"), "etag", None)
    assert script.etag.startswith(b'"')
    assert script.etag.endswith(b'"')


@pytest.mark.parametrize("path", ["", "documents", "read", "servers/docs", "a-b_c"])
def test_the_address_of_a_view_is_answered_with_the_page(assets: Assets, path: str) -> None:
    assert assets.find(path) is assets.find("index.html")


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js", "notes.py", "../secret.txt", "..", ".", "views/../app.js", "..\\secret.txt", "app.js\0",
        "\0", "/app.js", "//", "views//search.js", "views/", "app.js/", "x y", "é", "APP.JS", "~", "a\nb",
    ],
)  # fmt: skip
def test_nothing_else_is_there(assets: Assets, path: str) -> None:
    assert assets.find(path) is None


def test_files_are_read_once(assets: Assets, tmp_path: Path) -> None:
    before = assets.find("app.js")
    (tmp_path / "pages" / "app.js").write_text("changed")
    assert assets.find("app.js") is before


def test_the_package_has_its_pages() -> None:
    index = Assets().find("")
    assert index is not None
    assert b"<!doctype html>" in index.body.lower()


@pytest.mark.anyio
async def test_the_pages_come_with_a_policy_that_lets_nothing_else_run(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        response = await server.http.get("/console/read")
    policy, page = response.headers["content-security-policy"], response.text
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert " style=" not in page
    assert re.search(r"<[^>]+\son\w+=", page) is None


def test_all_that_the_first_script_needs_is_asked_for_at_once() -> None:
    index = (PAGES / "index.html").read_text()
    preloaded = re.findall(r'<link rel="modulepreload" href="\./([^"]+)"', index)
    assert sorted(preloaded) == sorted(find_imports("app.js") - {"app.js"})


def find_imports(name: str) -> set[str]:
    """A module, and all that it imports before anything of it runs."""
    found, coming = set[str](), [PAGES / name]
    while coming:
        path = coming.pop()
        module = str(path.relative_to(PAGES))
        if module not in found:
            found.add(module)
            named = re.findall(r'^(?:import|export)\b[^"(]*"(\.[^"]+)"', path.read_text(), re.MULTILINE)
            coming += [(path.parent / each).resolve() for each in named]
    return found


def test_no_script_of_the_console_makes_html_out_of_text() -> None:
    scripts = list(PAGES.rglob("*.js"))
    assert len(scripts) > 20
    for word in (
        ".innerHTML",
        ".outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "setHTML",
    ):
        assert [path.name for path in scripts if word in path.read_text()] == [], word
