"""The sites that publish documentation, on loopback: archives laid out as the real ones are, and what went wrong."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

from refdesk.ingest.recipes.recipe import Archive, Recipe, ReleasePage, VersionsFile, find
from tests.documents.web import Script, Web, answer

PAGES = {
    "index.html": "<title>PostgreSQL 17.2 Documentation</title><body><h1>PostgreSQL 17.2</h1><p>Contents.",
    "sql-vacuum.html": "<title>VACUUM</title><body><h1>VACUUM</h1><p>It reclaims storage occupied by dead tuples.",
    "sql-reindex.html": "<title>REINDEX</title><body><h1>REINDEX</h1><p>It rebuilds an index.",
    "bookindex.html": "<title>Index</title><body><p>Entries.",
}
INSIDE = "postgresql-17.2/doc/src/sgml/html"


def tar_of(files: Mapping[str, str | bytes], *extra: tarfile.TarInfo) -> bytes:
    """A tar archive, not compressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry in extra:
            archive.addfile(entry)
    return buffer.getvalue()


def zip_of(files: Mapping[str, str]) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def manual(pages: Mapping[str, str] = PAGES, folder: str = INSIDE) -> bytes:
    """The archive of a manual, among files that are no pages of it."""
    files = {f"{folder}/{path}": text for path, text in pages.items()}
    return gzip.compress(tar_of({"postgresql-17.2/README": "read me", **files}), mtime=0)


@dataclass
class PostgresqlSite:
    """As much of postgresql.org as its recipe needs."""

    web: Web
    release: str = "17.2"

    @property
    def recipe(self) -> Recipe:
        """The real recipe, with its addresses turned to this site."""
        real = find("postgresql")
        assert real is not None
        assert isinstance(real.newest, VersionsFile)
        archives = tuple(replace(archive, url=self._here(archive.url)) for archive in real.archives)
        return replace(real, newest=VersionsFile(self.web.url("/versions.json")), archives=archives)

    def _here(self, url: str) -> str:
        return re.sub(r"^https://[^/]+", f"http://127.0.0.1:{self.web.port}", url)

    @property
    def archive(self) -> str:
        """The path of the documentation's archive."""
        return f"/pub/source/v{self.release}/postgresql-{self.release}-docs.tar.gz"

    def publish(self, archive: bytes, *, checksum: str | None = None, **headers: str) -> None:
        """Put an archive on the site, and name its release as the newest."""
        major, minor = self.release.split(".")
        versions = [
            {"major": "16", "latestMinor": "6", "supported": True, "current": False},
            {"major": major, "latestMinor": minor, "supported": True, "current": True},
            {"major": "99", "latestMinor": "0", "supported": False, "current": False},
        ]
        self.web.pages["/versions.json"] = answer(json.dumps(versions).encode(), content_type="application/json")
        checksum = checksum or hashlib.sha256(archive).hexdigest()
        stated = f"{checksum}  {self.archive.rpartition('/')[2]}\n".encode()
        self.web.pages[f"{self.archive}.sha256"] = answer(stated)
        tag = f'"{hashlib.sha256(archive).hexdigest()[:16]}"'
        self.web.pages[self.archive] = self._conditional(answer(archive, etag=tag, **headers), tag)

    def _conditional(self, whole: bytes, tag: str) -> Script:
        async def script(writer: asyncio.StreamWriter) -> None:
            is_known = f"if-none-match: {tag}".lower() in self.web.requests[-1].lower()
            writer.write(answer(status="304 Not Modified", etag=tag) if is_known else whole)
            await writer.drain()

        return script


def python_site(web: Web) -> Recipe:
    """The recipe for Python with its addresses turned to a site that has 3.13, reached over a redirect."""
    real = find("python")
    assert real is not None
    assert isinstance(real.newest, ReleasePage)
    pages = {
        "index.html": "<title>3.13.1 Documentation</title><body><h1>Python 3.13.1 documentation</h1><p>Welcome!",
        "library/json.html": "<title>json</title><body><h1>json</h1><p>It encodes and decodes JSON.",
        "genindex.html": "<title>Index</title><body><p>Entries.",
        "_sources/library/json.rst.txt": "json",
    }
    files = {f"python-3.13-docs-html/{path}": text for path, text in pages.items()}
    link = b'<a href="archives/python-3.13-docs-html.tar.bz2">Download</a>'
    web.pages["/3/download.html"] = answer(link, content_type="text/html")
    moved = answer(status="301 Moved Permanently", location="/moved/python.tar.bz2")
    web.pages["/3.13/archives/python-3.13-docs-html.tar.bz2"] = moved
    web.pages["/moved/python.tar.bz2"] = answer(bz2.compress(tar_of(files)))
    newest = replace(real.newest, url=web.url("/{version}/download.html"))
    archive = Archive(
        web.url("/{version}/archives/python-{release}-docs-html.tar.bz2"),
        real.archives[0].folder,
    )
    return replace(real, newest=newest, archives=(archive,))


def ubuntu_site(web: Web) -> Recipe:
    """The recipe for Ubuntu with its address turned to a site that, like the real one, sends on to another."""
    real = find("ubuntu")
    assert real is not None
    pages = {"index.md": "# Ubuntu Server\n\nWelcome.", "how-to/backups.md": "# Backups\n\nHow to back up a server."}
    top = "ubuntu-server-documentation-main"
    files = {f"{top}/docs/{path}": text for path, text in pages.items()}
    whole = gzip.compress(tar_of({f"{top}/README.md": "# Not a page", f"{top}/docs/conf.py": "", **files}))
    web.pages["/main.tar.gz"] = answer(status="302 Found", location="/code/main.tar.gz")
    web.pages["/code/main.tar.gz"] = answer(whole)
    return replace(real, archives=(replace(real.archives[0], url=web.url("/main.tar.gz")),))
