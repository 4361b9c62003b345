"""Documentation by its name: fetched whole, kept fresh, never of another version than it says, and never half."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.app import Desk, open_desk
from refdesk.calls import Caller, TenantId
from refdesk.config.loading import load
from refdesk.config.models import ConvertConfig
from refdesk.engines.base import IN_PROGRESS
from refdesk.errors import CannotConvert, CannotFetch
from refdesk.ingest.recipes import bring_in
from refdesk.ingest.recipes.importer import RecipeImport
from refdesk.ingest.recipes.recipe import Recipe, find, names
from tests.documents.web import Web, answer, running_web
from tests.ingest.recipes.sites import PAGES, PostgresqlSite, manual, python_site, ubuntu_site
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with running_web() as web:
        yield web


@pytest.fixture
def site(web: Web) -> PostgresqlSite:
    return PostgresqlSite(web)


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """One for all tests, each of which is a tenant of its own."""
    config = load(None, {}, {"data_dir": str(tmp_path_factory.mktemp("data"))})
    async with open_desk(config, servers=False) as desk:
        yield desk


@dataclass
class Library:
    """The documentation of one tenant, whose system has installed what a test puts there."""

    desk: Desk
    folder: Path
    caller: Caller

    @property
    def system(self) -> Path:
        return self.folder / "system"

    @property
    def pages(self) -> Path:
        return self.folder / "data/recipes"

    async def bring(self, recipe: Recipe, **wanted: Any) -> RecipeImport:
        """Bring documentation in, and wait until all of it can be found."""
        settings = ConvertConfig(allow_networks=("127.0.0.0/8",))
        tenant, data = self.caller.tenant, self.folder / "data"
        brought = await bring_in(recipe, self.desk.engine, tenant, settings, data, system=self.system, **wanted)
        await self._wait_until_indexed([*brought.new, *brought.changed])
        return brought

    async def top(self, query: str, **more: Any) -> dict[str, Any]:
        """The best hit, as an agent sees it."""
        answer = await self.desk.call("r2r_search", {"query": query, "limit": 1, **more}, caller=self.caller)
        found: dict[str, Any] = answer.result["structuredContent"]["results"][0]
        return found

    async def _wait_until_indexed(self, ids: list[str]) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while ids:
                statuses = await self.desk.engine.wait(self.caller.tenant, ids, seconds=1)
                assert not [status.error for status in statuses if status.status == "failed"]
                ids = [status.id for status in statuses if status.status in IN_PROGRESS]


@pytest.fixture
def library(desk: Desk, tmp_path: Path) -> Library:
    return Library(desk, tmp_path, Caller(tenant=TenantId(tmp_path.name), authenticated=True))


def install(system: Path, folder: str, pages: dict[str, str]) -> None:
    for path, text in pages.items():
        place = system / folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def make_installed_pages(release: str) -> dict[str, str]:
    index = f"<title>PostgreSQL {release} Documentation</title><body><h1>PostgreSQL {release}</h1><p>Contents."
    return {**PAGES, "index.html": index}


async def test_the_newest_release_is_fetched_and_found_with_its_version_and_its_address(
    site: PostgresqlSite, library: Library
) -> None:
    site.publish(manual())

    brought = await library.bring(site.recipe)

    assert (brought.collection, brought.version, brought.release) == ("postgresql-17", "17", "17.2")
    assert sorted(brought.new) == [
        f"postgresql-17/{page}" for page in ("index.html", "sql-reindex.html", "sql-vacuum.html")
    ]
    hit = await library.top("reclaim storage of dead tuples")
    assert hit["document_id"] == "postgresql-17/sql-vacuum.html"
    assert hit["metadata"]["version"] == "17"
    assert hit["metadata"]["url"] == "https://www.postgresql.org/docs/17/sql-vacuum.html"


async def test_what_has_not_changed_is_not_sent_again_and_not_touched(
    site: PostgresqlSite, web: Web, library: Library
) -> None:
    site.publish(manual())
    await library.bring(site.recipe)
    page = library.pages / "postgresql-17/pages/sql-vacuum.html"
    before = page.stat()

    again = await library.bring(site.recipe)

    assert (again.new, again.changed, again.unchanged, again.removed) == ((), (), 3, ())
    assert (page.stat().st_ino, page.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    asked = [request.lower() for request in web.requests if f"get {site.archive} " in request.lower()]
    assert ["if-none-match" in request for request in asked] == [False, True]


async def test_of_a_new_release_only_what_changed_is_read_anew(site: PostgresqlSite, library: Library) -> None:
    site.publish(manual())
    await library.bring(site.recipe)
    site.release = "17.3"
    pages = {path: text.replace("17.2", "17.3") for path, text in PAGES.items() if path != "sql-reindex.html"}
    site.publish(manual({**pages, "sql-merge.html": "<title>MERGE</title><body><h1>MERGE</h1><p>It merges rows."}))

    again = await library.bring(site.recipe)

    assert again.release == "17.3"
    assert again.new == ("postgresql-17/sql-merge.html",)
    assert again.changed == ("postgresql-17/index.html",)
    assert again.removed == ("postgresql-17/sql-reindex.html",)
    assert again.unchanged == 1
    assert (await library.top("merges rows"))["document_id"] == "postgresql-17/sql-merge.html"


async def test_two_versions_stand_side_by_side_and_each_says_which_it_is(
    site: PostgresqlSite, library: Library
) -> None:
    site.publish(manual())
    await library.bring(site.recipe)
    install(library.system, "usr/share/doc/postgresql-doc-15/html", make_installed_pages("15.20"))

    brought = await library.bring(site.recipe, version="15", offline=True)

    assert (brought.collection, brought.release) == ("postgresql-15", "15.20")
    for version in ("15", "17"):
        hit = await library.top("dead tuples", filters={"version": version})
        assert hit["metadata"]["version"] == version
        assert hit["metadata"]["url"] == f"https://www.postgresql.org/docs/{version}/sql-vacuum.html"


async def test_another_version_than_the_one_asked_for_is_never_taken(site: PostgresqlSite, library: Library) -> None:
    install(library.system, "usr/share/doc/postgresql-doc-15/html", make_installed_pages("15.20"))
    with pytest.raises(CannotFetch, match=r"installed here in 15\.20, not in 16"):
        await library.bring(site.recipe, version="16", offline=True)
    site.publish(manual())
    with pytest.raises(CannotFetch, match=r"names no version 12 .* Versions there: 16, 17, 99\."):
        await library.bring(site.recipe, version="12")
    assert await library.desk.engine.list_document_ids(library.caller.tenant, prefix="postgresql") == []


async def test_an_archive_that_says_it_is_of_another_version_is_refused(site: PostgresqlSite, library: Library) -> None:
    site.publish(manual(make_installed_pages("16.6")))
    with pytest.raises(CannotConvert, match=r"has 16\.6 instead of 17\.2"):
        await library.bring(site.recipe)


async def test_what_the_system_has_is_taken_when_the_site_is_away_and_it_is_said(
    site: PostgresqlSite, library: Library
) -> None:
    install(library.system, "usr/share/doc/postgresql-doc-15/html", make_installed_pages("15.20"))
    site.web.pages["/versions.json"] = answer(status="503 Service Unavailable")

    brought = await library.bring(site.recipe)

    assert (brought.version, len(brought.new)) == ("15", 3)
    assert brought.note.startswith("The download failed, so the installed documentation was imported: ")
    assert "503" in brought.note


async def test_a_site_that_is_away_does_not_make_newer_pages_give_way_to_older_ones(
    site: PostgresqlSite, library: Library
) -> None:
    site.publish(manual())
    await library.bring(site.recipe)
    install(library.system, "usr/share/doc/postgresql-doc-17/html", make_installed_pages("17.0"))
    site.web.pages["/versions.json"] = answer(status="503 Service Unavailable")
    with pytest.raises(CannotFetch, match=r"The copy downloaded earlier, 17\.2, is unchanged"):
        await library.bring(site.recipe)


async def test_without_a_site_and_without_a_package_both_are_told(site: PostgresqlSite, library: Library) -> None:
    with pytest.raises(CannotFetch, match=r"404.*apt install postgresql-doc"):
        await library.bring(site.recipe)


async def test_the_sources_are_taken_where_the_pages_have_no_archive_of_their_own(
    site: PostgresqlSite, library: Library
) -> None:
    site.publish(manual())
    site.web.pages[site.archive.replace("-docs.tar.gz", ".tar.bz2")] = answer(manual())
    del site.web.pages[site.archive]
    assert (await library.bring(site.recipe)).source.endswith("/postgresql-17.2.tar.bz2")


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda site: site.publish(manual(), checksum="0" * 64), "doesn't match its published checksum"),
        (lambda site: site.publish(manual()[:-200]), "incomplete or broken"),
        (lambda site: site.publish(b"<html>Please log in"), "isn't a zip archive"),
        (lambda site: site.publish(manual(folder="elsewhere")), "no pages"),
        (lambda site: site.publish(manual({"../../../../../etc/cron.html": "x"})), "leads outside"),
    ],
    ids=["checksum", "truncated", "no archive", "no pages", "traversal"],
)
async def test_an_archive_that_cannot_be_trusted_changes_nothing(
    spoil: Callable[[PostgresqlSite], None], cause: str, site: PostgresqlSite, library: Library
) -> None:
    site.publish(manual())
    await library.bring(site.recipe)
    folder = library.pages / "postgresql-17"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    site.release = "17.3"
    spoil(site)
    with pytest.raises(CannotConvert, match=cause):
        await library.bring(site.recipe)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


async def test_a_download_that_breaks_off_is_told_and_nothing_is_kept(site: PostgresqlSite, library: Library) -> None:
    whole = manual()
    site.publish(whole[: len(whole) // 2], content_length=str(len(whole)))
    with pytest.raises(CannotFetch):
        await library.bring(site.recipe)
    assert not list(library.pages.rglob("*.html"))


async def test_a_page_that_names_no_releases_is_told(site: PostgresqlSite, library: Library) -> None:
    site.web.pages["/versions.json"] = answer(b'{"maintenance": true}')
    with pytest.raises(CannotFetch, match="does not list releases"):
        await library.bring(site.recipe)


async def test_python_is_found_by_its_download_page_and_over_a_redirect(web: Web, library: Library) -> None:
    brought = await library.bring(python_site(web))
    assert (brought.collection, brought.version, brought.release) == ("python-3-13", "3.13", "3.13.1")
    assert len(brought.new) == 2
    hit = await library.top("decodes JSON")
    assert hit["metadata"]["url"] == "https://docs.python.org/3.13/library/json.html"


async def test_documentation_without_versions_has_one_collection_and_takes_no_version(
    web: Web, library: Library
) -> None:
    recipe = ubuntu_site(web)
    with pytest.raises(CannotFetch, match="has no versions"):
        await library.bring(recipe, version="24.04")

    brought = await library.bring(recipe)

    assert (brought.collection, brought.version, len(brought.new)) == ("ubuntu", "", 2)
    hit = await library.top("back up a server", collection_id="ubuntu")
    assert hit["metadata"]["url"] == "https://documentation.ubuntu.com/server/how-to/backups/"


@pytest.mark.parametrize(("asked", "hint"), [("17.2", "Did you mean 17?"), ("../../etc", "isn't a version of")])
async def test_what_is_no_version_is_refused_before_anything_is_fetched(
    asked: str, hint: str, site: PostgresqlSite, library: Library
) -> None:
    with pytest.raises(CannotFetch, match=re.escape(hint)):
        await library.bring(site.recipe, version=asked)
    assert site.web.requests == []


async def test_the_handbook_of_debian_is_taken_from_its_package(library: Library) -> None:
    recipe = find("debian")
    assert recipe is not None
    index = "<title>Debian Bullseye from Discovery to Mastery</title><body><h1>Handbook</h1><p>Contents."
    pages = {"index.html": index, "apt.html": "<body><h1>apt</h1><p>It gets packages."}
    with pytest.raises(CannotFetch, match="apt install debian-handbook"):
        await library.bring(recipe)
    install(library.system, "usr/share/doc/debian-handbook/html/en-US", pages)

    brought = await library.bring(recipe)

    assert (brought.collection, brought.version) == ("debian-bullseye", "Bullseye")
    assert (await library.top("gets packages", collection_id="debian-bullseye"))["metadata"]["version"] == "Bullseye"


async def test_it_goes_where_it_is_told_with_what_it_is_given(site: PostgresqlSite, library: Library) -> None:
    site.publish(manual())
    brought = await library.bring(site.recipe, collection="databases", metadata={"team": "storage"})
    assert brought.collection == "databases"
    hit = await library.top("dead tuples", filters={"metadata.team": "storage"})
    assert hit["document_id"] == "databases/sql-vacuum.html"


async def test_a_person_who_waits_is_told_of_the_download(site: PostgresqlSite, library: Library) -> None:
    site.publish(manual())
    told: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, doing: str) -> None:
        told.append((done, total))

    await library.bring(site.recipe, progress=progress)
    assert told[-1][0] == told[-1][1] == len(manual())


def test_a_recipe_is_found_by_its_name_in_any_case() -> None:
    assert names() == ["debian", "postgresql", "python", "ubuntu"]
    assert [recipe.name for name in names() if (recipe := find(name.upper()))] == names()
    assert find("fortran") is None
