"""The places on the Internet that the pages name, as a site on loopback that has the same paths."""

from __future__ import annotations

import bz2
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import refdesk.cli.recipes
from refdesk.ingest.recipes.importer import bring_in
from refdesk.ingest.recipes.recipe import Recipe, ReleasePage, find
from tests.documents.web import Web, answer, running_web
from tests.ingest.recipes.sites import PostgresqlSite, manual, tar_of, zip_of

FILES = Path(__file__).parents[1] / "files"

ADDRESSES = (
    "https://www.debian.org",
    "https://example.com",
    "https://docs.example.com",
    "https://public.ukp.informatik.tu-darmstadt.de",
)
"""What the pages fetch from. The command is run with the site's address in their place."""

CORPUS = '{"_id": "7", "title": "Dusk", "text": "Bats leave their roosts shortly after dusk."}\n'
QUERIES = '{"_id": "1", "text": "Bats fly after dusk."}\n'
JUDGEMENTS = "query-id\tcorpus-id\tscore\n1\t7\t1\n"
SCIFACT = {
    "scifact/corpus.jsonl": CORPUS,
    "scifact/queries.jsonl": QUERIES,
    "scifact/qrels/test.tsv": JUDGEMENTS,
}

POSTGRESQL = {"17.2": "17", "15.10": "15"}
"""The releases that the site has, and what their manual is about."""


@asynccontextmanager
async def running_site() -> AsyncIterator[Web]:
    """The site, until the block ends."""
    async with running_web() as web:
        _publish_pages(web)
        _publish_postgresql(web)
        _publish_python(web, "3.12", "3.12.8")
        yield web


def _publish_pages(web: Web) -> None:
    page = b"<title>Guide</title><body><h1>Guide</h1><p>Read it from the start.</p></body>"
    text = b"# Example\n\n## Install it\n\nRun `example install`.\n"
    pdf = (FILES / "pdf" / "manual.pdf").read_bytes()
    folder = "/doc/manuals/developers-reference/"
    for path in ("/", "/guide.html", folder):
        web.pages[path] = answer(page, content_type="text/html")
    web.pages[f"{folder}developers-reference.en.pdf"] = answer(pdf, content_type="application/pdf")
    web.pages["/llms-full.txt"] = answer(text, content_type="text/plain; charset=utf-8")
    web.pages["/thakur/BEIR/datasets/scifact.zip"] = answer(zip_of(SCIFACT), content_type="application/zip")


def _publish_postgresql(web: Web) -> None:
    for release, version in POSTGRESQL.items():
        site = PostgresqlSite(web, release)
        archive = manual(manual_pages(release), f"postgresql-{release}/doc/src/sgml/html")
        web.pages[site.archive] = answer(archive)
        stated = f"{hashlib.sha256(archive).hexdigest()}  {site.archive.rpartition('/')[2]}\n"
        web.pages[f"{site.archive}.sha256"] = answer(stated.encode())
        assert release.startswith(version)
    versions = [dict(zip(("major", "latestMinor"), release.split("."), strict=True)) for release in POSTGRESQL]
    listed = json.dumps([entry | {"supported": True} for entry in versions]).encode()
    web.pages["/versions.json"] = answer(listed, content_type="application/json")


def manual_pages(release: str) -> dict[str, str]:
    """A very short manual of PostgreSQL."""
    return {
        "index.html": f"<title>PostgreSQL {release} Documentation</title><body><h1>Contents</h1><p>All of it.",
        "sql-createindex.html": "<title>CREATE INDEX</title><body><h1>CREATE INDEX</h1><p>With CONCURRENTLY an "
        "index is built without locking out writes.",
        "sql-commands.html": "<title>SQL Commands</title><body><h1>SQL Commands</h1><p>It lists all SQL commands.",
    }


def _publish_python(web: Web, version: str, release: str) -> None:
    pages = {
        "index.html": f"<title>{release} Documentation</title><body><h1>Python {release} documentation</h1><p>Welcome!",
        "library/json.html": "<title>json</title><body><h1>json</h1><p>It encodes and decodes JSON.",
    }
    name = f"python-{release}-docs-html"
    archive = bz2.compress(tar_of({f"{name}/{path}": text for path, text in pages.items()}))
    link = f'<a href="archives/{name}.tar.bz2">Download</a>'.encode()
    web.pages[f"/{version}/download.html"] = answer(link, content_type="text/html")
    web.pages[f"/{version}/archives/{name}.tar.bz2"] = answer(archive)


def turn_recipes(environ: Mapping[str, str]) -> None:
    """In a process that runs one command: let the recipes fetch from the site, and look for packages below a folder."""
    site, system = environ.get("DESK_SITE"), environ.get("DESK_SYSTEM")
    if site and system:
        web = Web(port=int(site))
        vars(refdesk.cli.recipes)["find"] = partial(_turned, web)
        vars(refdesk.cli.recipes)["bring_in"] = partial(bring_in, system=Path(system))


def _turned(web: Web, name: str) -> Recipe | None:
    """The real recipe with its addresses turned to the site."""
    if name == "postgresql":
        return PostgresqlSite(web).recipe
    real = find(name)
    if name != "python" or real is None or not isinstance(real.newest, ReleasePage):
        return real
    here, there = web.url(""), "https://docs.python.org"
    archives = tuple(replace(archive, url=archive.url.replace(there, here)) for archive in real.archives)
    return replace(real, newest=replace(real.newest, url=real.newest.url.replace(there, here)), archives=archives)
