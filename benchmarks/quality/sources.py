"""Where the documents come from: documentation packages of Debian, unpacked and never installed."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lxml import html
from lxml.html import HtmlElement

from .truth import text_of

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / ".cache" / "convert-corpus"
PACKAGES = CORPUS / "packages"
DOWNLOAD_SECONDS = 300


class NotToBeHad(Exception):
    """A part of the corpus cannot be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of HTML and the element that is its text."""

    name: str
    path: Path
    main: str
    """XPath of what is read; several elements are read one after the other."""
    manual: str = ""
    """The manual that it is a chapter of, where the corpus has the manual as well."""

    def main_elements(self) -> list[HtmlElement]:
        """The elements that hold the text."""
        return list(_parsed(self.path).xpath(self.main))


@dataclass(frozen=True, slots=True)
class Manual:
    """A PDF and the HTML edition of the same text."""

    name: str
    package: str
    pdf: str
    html_package: str
    pages: str
    """The HTML files, as a pattern."""
    chapters: str
    """XPath of a chapter in them."""

    def pdf_bytes(self) -> bytes:
        """The whole PDF."""
        data = (unpacked(self.package) / self.pdf).read_bytes()
        return gzip.decompress(data) if self.pdf.endswith(".gz") else data

    def html_chapters(self) -> Iterator[tuple[str, HtmlElement]]:
        """Each chapter of the HTML edition with its title."""
        for path in sorted(unpacked(self.html_package).glob(self.pages)):
            for chapter in _parsed(path).xpath(self.chapters):
                heading = next(chapter.iter("h1", "h2"), None)
                if heading is not None:
                    yield text_of(heading), chapter


TEXINFO = "//div[@class='chapter' or @class='appendix' or @class='unnumbered']"
SPHINX = "//div[@role='main']"
DOCBOOK = "//body/div[@class='chapter' or @class='appendix']"

_R_PDF, _R_HTML = "usr/share/R/doc/manual/{}.pdf", "usr/share/R/doc/manual/{}.html"
_POLICY = "usr/share/doc/debian-policy"
_FAQ = "usr/share/doc/debian/FAQ"
_DEBMAKE = "usr/share/doc/debmake-doc"
_DEVREF = "usr/share/developers-reference"
_VALGRIND = "usr/share/doc/valgrind"

MANUALS = (
    Manual(
        "bash", "bash-doc", "usr/share/doc/bash/bashref.pdf", "bash-doc", "usr/share/doc/bash/bashref.html", TEXINFO
    ),
    Manual(
        "autoconf",
        "autoconf-doc",
        "usr/share/doc/autoconf/autoconf.pdf.gz",
        "autoconf-doc",
        "usr/share/doc/autoconf/autoconf.html",
        TEXINFO,
    ),
    *(
        Manual(name.lower(), "r-doc-pdf", _R_PDF.format(name), "r-doc-html", _R_HTML.format(name), TEXINFO)
        for name in ("R-intro", "R-data", "R-admin", "R-exts", "R-ints", "R-lang", "R-FAQ")
    ),
    Manual(
        "policy", "debian-policy", f"{_POLICY}/policy.pdf.gz", "debian-policy", f"{_POLICY}/policy.html/*.html", SPHINX
    ),
    Manual(
        "devref",
        "developers-reference",
        f"{_DEVREF}/developers-reference.pdf",
        "developers-reference",
        f"{_DEVREF}/*.html",
        SPHINX,
    ),
    Manual(
        "reference",
        "debian-reference-en",
        "usr/share/debian-reference/debian-reference.en.pdf",
        "debian-reference-en",
        "usr/share/debian-reference/ch*.en.html",
        DOCBOOK,
    ),
    Manual("faq", "debian-faq", f"{_FAQ}/debian-faq.en.pdf.gz", "debian-faq", f"{_FAQ}/*.en.html", DOCBOOK),
    Manual(
        "debmake", "debmake-doc", f"{_DEBMAKE}/debmake-doc.en.pdf", "debmake-doc", f"{_DEBMAKE}/html/*.en.html", DOCBOOK
    ),
    Manual(
        "valgrind", "valgrind", f"{_VALGRIND}/valgrind_manual.pdf.gz", "valgrind", f"{_VALGRIND}/html/*.html", DOCBOOK
    ),
)
"""Manuals that Debian ships twice: made by pdfTeX, XeTeX and FOP from Texinfo, Sphinx and DocBook."""


def postgres_pages(names: Sequence[str]) -> list[Page]:
    """Pages of the PostgreSQL manual: DocBook with many tables and much code."""
    folder = unpacked("postgresql-doc-15") / "usr/share/doc/postgresql-doc-15/html"
    main = "//body/div[not(@class='navheader') and not(@class='navfooter')]"
    return [Page(f"pg-{name}", folder / f"{name}.html", main) for name in names]


def git_pages(names: Sequence[str]) -> list[Page]:
    """Pages of Git's manual: AsciiDoc with lists and definitions."""
    folder = unpacked("git-doc") / "usr/share/doc/git-doc"
    return [Page(name, folder / f"{name}.html", "//*[@id='header' or @id='content']") for name in names]


def sphinx_pages() -> list[Page]:
    """Pages of two manuals by Sphinx: sidebars, and a mark behind every heading."""
    return [
        *_chapters("policy", SPHINX, "ch-archive ch-binary ch-files ch-relationships ch-customized-programs"),
        *_chapters("devref", SPHINX, "developer-duties resources beyond-pkging l10n"),
    ]


def docbook_pages() -> list[Page]:
    """Pages of three manuals by DocBook's style sheets."""
    return [
        *_chapters("reference", DOCBOOK, "ch03.en ch05.en ch08.en ch12.en"),
        *_chapters("faq", DOCBOOK, "choosing.en pkg-basics.en customizing.en"),
        *_chapters("valgrind", DOCBOOK, "ms-manual hg-manual manual-writing-tools"),
    ]


def _chapters(name: str, main: str, stems: str) -> list[Page]:
    manual = next(one for one in MANUALS if one.name == name)
    folder = (unpacked(manual.html_package) / manual.pages).parent
    return [Page(f"{name}-{stem}", folder / f"{stem}.html", main, manual=name) for stem in stems.split()]


def unpacked(package: str) -> Path:
    """The folder of a package's files; downloads it when it is missing."""
    folder = PACKAGES / package
    if not folder.exists():
        PACKAGES.mkdir(parents=True, exist_ok=True)
        try:
            _run("apt-get", "download", package)
            archive = next(PACKAGES.glob(f"{package}_*.deb"))
            _run("dpkg", "-x", str(archive), str(folder))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            raise NotToBeHad(f"the Debian package {package} cannot be had: {error}") from error
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, cwd=PACKAGES, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS)


def _parsed(path: Path) -> HtmlElement:
    """HTML as a tree; the pages name their encoding themselves, or use UTF-8."""
    data = path.read_bytes()
    encoding = "latin-1" if b"iso-8859-1" in data[:2000].lower() else "utf-8"
    return html.document_fromstring(data, parser=html.HTMLParser(encoding=encoding))
