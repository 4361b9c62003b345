"""Recipes included with Refdesk."""

from __future__ import annotations

from refdesk.ingest.recipes.recipe import Archive, Recipe, ReleasePage, VersionsFile

_POSTGRESQL_FILES = "https://ftp.postgresql.org/pub/source/v{release}/postgresql-{release}"

POSTGRESQL = Recipe(
    name="postgresql",
    title="PostgreSQL documentation",
    home="https://www.postgresql.org/docs/{version}/",
    excluded=("bookindex.html", "legalnotice.html"),
    # Up to version 16 the source archive contains the pages as well; since 17 they are only in a separate archive.
    archives=(
        Archive(f"{_POSTGRESQL_FILES}-docs.tar.gz", "doc/src/sgml/html", checksum=".sha256"),
        Archive(f"{_POSTGRESQL_FILES}.tar.bz2", "doc/src/sgml/html", checksum=".sha256"),
    ),
    newest=VersionsFile("https://www.postgresql.org/versions.json"),
    release=r"<title>PostgreSQL (\d+\.\d+) Documentation",
    installed=("usr/share/doc/postgresql-doc-*/html", "usr/share/doc/postgresql/html"),
    package="postgresql-doc",
)

PYTHON = Recipe(
    name="python",
    title="Python documentation",
    home="https://docs.python.org/{version}/",
    excluded=("_*/*", "genindex*.html", "py-modindex.html", "search.html", "contents.html", "download.html"),
    archives=(
        Archive(
            "https://docs.python.org/{version}/archives/python-{release}-docs-html.tar.bz2",
            "python-*-docs-html",
        ),
    ),
    newest=ReleasePage(
        "https://docs.python.org/{version}/download.html", r"python-(\d+\.\d+(?:\.\d+)?)-docs-html\.tar\.bz2", "3"
    ),
    release=r"<title>(?:Python )?(\d+\.\d+\.\d+) Documentation",
    version=r"\d+\.\d+",
    installed=("usr/share/doc/python3.*/html", "usr/share/doc/python3-docs/html"),
    package="python3-doc",
)

UBUNTU = Recipe(
    name="ubuntu",
    title="Ubuntu Server documentation",
    home="https://documentation.ubuntu.com/server/",
    suffix=".md",
    excluded=("_*/*", ".*/*", "reuse/*", "contributing/*"),
    archives=(
        Archive(
            "https://github.com/canonical/ubuntu-server-documentation/archive/refs/heads/main.tar.gz",
            "docs",
        ),
    ),
    has_bare_urls=True,
)
"""One edition for all supported releases of Ubuntu, from the repository that the site is built from. The site itself
offers no archive of pages."""

DEBIAN = Recipe(
    name="debian",
    title="The Debian Administrator's Handbook",
    home="https://debian-handbook.info/browse/stable/",
    release=r"Debian (\w+) from Discovery to Mastery",
    version=r"\w+",
    installed=("usr/share/doc/debian-handbook/html/en-US",),
    package="debian-handbook",
)

RECIPES = {recipe.name: recipe for recipe in (POSTGRESQL, PYTHON, UBUNTU, DEBIAN)}
