"""Every document of the corpus: which source, made by which program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lxml import html
from lxml.html import HtmlElement

from . import manuals, programs, sheets, slides
from .corpus import Recipe, slug
from .sources import MANUALS, Page, docbook_pages, git_pages, postgres_pages, sphinx_pages
from .truth import FRAMES, markdown_of

Names = tuple[str, str]
"""Pages of PostgreSQL's manual, and pages of Git's."""
Maker = Callable[[Path, Path], None]

CHROMIUM: Names = (
    """sql-select sql-createtable functions-string functions-json datatype-numeric ddl-constraints explicit-locking
    queries-table-expressions arrays sql-copy using-explain auth-pg-hba-conf hstore pgstatstatements""",
    "git-add git-rebase git-diff git-bisect gittutorial giteveryday git-worktree gitattributes git-fetch",
)
WEASYPRINT: Names = (
    """sql-insert datatype-datetime plpgsql-control-structures ddl-partitioning textsearch-controls sql-createindex
    runtime-config-wal catalog-pg-class transaction-iso functions-aggregate app-initdb pgcrypto multibyte
    functions-matching""",
    "git-commit git-merge git-stash gitworkflows git-checkout gitignore git-submodule git-blame gitrevisions",
)
LATEX: Names = (
    "sql-update populate trigger-definition plpgsql-declarations indexes-partial auth-ldap wal-configuration",
    "git-reset git-push git-clone",
)
TWO_COLUMNS: Names = ("sql-vacuum sql-reindex rules-views", "gittutorial-2 git-clean git-tag")
GROFF: Names = ("sql-delete ddl-inherit sql-grant storage-page-layout", "git-pull git-switch git-mv")
"""Each page is printed by one program only, for the sake of variety."""

DOCX_PANDOC: Names = (
    """sql-select sql-insert functions-json datatype-numeric ddl-partitioning catalog-pg-class pgcrypto arrays
    plpgsql-control-structures""",
    "git-add git-commit gitworkflows giteveryday git-worktree",
)
DOCX_SAVED_AGAIN: Names = (
    "sql-update ddl-constraints datatype-datetime trigger-definition",
    "git-merge git-stash git-tag",
)
DOCX_LIBREOFFICE: Names = ("sql-copy functions-aggregate hstore explicit-locking", "git-bisect gittutorial git-push")
DECKS: Names = (
    """ddl-partitioning plpgsql-control-structures datatype-numeric explicit-locking functions-matching multibyte
    datatype-net-types functions-comparison locale pgcrypto isn""",
    "gitworkflows giteveryday git-bisect gitattributes",
)
OTHERS: Names = ("sql-delete multibyte transaction-iso", "git-checkout gitignore")
"""For each of the formats that office suites and readers use beside the main ones."""

WHOLE: Names = (
    """sql-createtable functions-string auth-pg-hba-conf datatype-datetime sql-createindex rules-views app-initdb
    pgstatstatements transaction-iso xfunc-sql""",
    "git-log git-rebase git-diff gitrevisions gitglossary git-clean git-submodule gittutorial-2",
)

PAPER = """
@page { size: A4; margin: 2cm; @top-center { content: "Manual" } @bottom-right { content: counter(page) } }
"""


def manual_chapters() -> Iterator[Recipe]:
    """PDFs by pdfTeX, XeTeX and FOP, cut out of manuals."""
    for manual in MANUALS:
        for chapter in manuals.chapters_of(manual):
            name = f"deb-{manual.name}-{slug(chapter.title)}"
            make = partial(manuals.cut, manual, chapter)
            yield Recipe("pdf", name, manual.name, partial(markdown_of, chapter.element), make)


def chromium_prints() -> Iterator[Recipe]:
    """Tagged PDFs; every other one with a header and a footer."""
    for number, page in enumerate(_pages(CHROMIUM)):
        make = partial(programs.print_by_chromium, furniture=number % 2 == 0)
        yield _styled("pdf", f"chrome-{page.name}", page, make)


def weasyprint_prints() -> Iterator[Recipe]:
    """PDFs that have an outline and no tags; with a header and page numbers."""
    for page in _pages(WEASYPRINT):
        yield _styled("pdf", f"weasy-{page.name}", page, programs.print_by_weasyprint)


def latex_prints() -> Iterator[Recipe]:
    """PDFs by pdfTeX in the layout of articles, some in two columns, every other one with numbered sections."""
    for number, page in enumerate(_pages(LATEX)):
        more = ("--number-sections",) if number % 2 else ()
        yield _bare("pdf", f"latex-{page.name}", page, partial(_latex, more))
    for page in _pages(TWO_COLUMNS):
        make = partial(_latex, ("--variable=classoption:twocolumn",))
        yield _bare("pdf", f"latex2-{page.name}", page, make)


def groff_prints() -> Iterator[Recipe]:
    """PDFs by troff."""
    for page in _pages(GROFF):
        yield _bare("pdf", f"groff-{page.name}", page, _through_ms)


def word_documents() -> Iterator[Recipe]:
    """DOCX by pandoc, by LibreOffice, and by the one saved again by the other."""
    for page in _pages(DOCX_PANDOC):
        yield _bare("docx", f"pandoc-{page.name}", page, programs.convert_by_pandoc)
    for page in _pages(DOCX_SAVED_AGAIN):
        yield _bare("docx", f"again-{page.name}", page, partial(_saved_again, programs.convert_by_pandoc))
    for page in _pages(DOCX_LIBREOFFICE):
        make = partial(programs.convert_by_libreoffice, reading="HTML (StarWriter)")
        yield _bare("docx", f"lo-{page.name}", page, make)


def decks() -> Iterator[Recipe]:
    """PPTX by pandoc, every other one saved again by LibreOffice."""
    for number, page in enumerate([*_pages(DECKS), *sphinx_pages()[:6], *docbook_pages()[:7]]):
        make: Maker = slides.deck_by_pandoc
        if again := number % 2 == 1:
            make = partial(_saved_again, make)
        deck = partial(_deck, page)
        name = f"{'again' if again else 'pandoc'}-{page.name}"
        yield Recipe("pptx", name, page.manual or page.name, deck, partial(_from_text, deck, "deck.md", make))


def workbooks() -> Iterator[Recipe]:
    """XLSX by LibreOffice and by office-oxide, of one or several sheets, of words and of numbers."""
    for number, workbook in enumerate(sheets.workbooks()):
        by_libreoffice = number % 3 != 2
        make = sheets.write_by_libreoffice if by_libreoffice else sheets.write_by_office_oxide
        name = f"{'lo' if by_libreoffice else 'oxide'}-{workbook.name}"
        yield Recipe("xlsx", name, workbook.name, partial(sheets.truth, workbook), partial(make, workbook))


def other_documents() -> Iterator[Recipe]:
    """ODT, RTF and EPUB by pandoc."""
    for format in ("odt", "rtf", "epub"):
        for page in _pages(OTHERS):
            yield _bare(format, f"pandoc-{page.name}", page, partial(_pandoc, ("--standalone",)))


def web_pages() -> Iterator[Recipe]:
    """Whole pages of five sites, navigation and all."""
    for page in [*_pages(WHOLE), *sphinx_pages(), *docbook_pages()]:
        yield Recipe(
            "html", page.name, page.manual or page.name, partial(_truth, page, unstyled=True), partial(_copied, page)
        )


RECIPES: dict[str, Callable[[], Iterator[Recipe]]] = {
    "manuals": manual_chapters,
    "chromium": chromium_prints,
    "weasyprint": weasyprint_prints,
    "latex": latex_prints,
    "groff": groff_prints,
    "docx": word_documents,
    "pptx": decks,
    "xlsx": workbooks,
    "others": other_documents,
    "html": web_pages,
}


def _pages(names: Names) -> list[Page]:
    return [*postgres_pages(names[0].split()), *git_pages(names[1].split())]


def _styled(format: str, name: str, page: Page, make: Maker) -> Recipe:
    """Made of the page as its site shows it, without navigation."""
    source = partial(_main_only, page, f"<title>{page.name}</title>{_styles(page)}<style>{PAPER}</style>")
    return Recipe(format, name, page.name, partial(_truth, page), partial(_from_text, source, "page.html", make))


def _bare(format: str, name: str, page: Page, make: Maker) -> Recipe:
    """Made of the structure alone; without a title, which would become a heading that is not in the text."""
    source = partial(_main_only, page, "", unstyled=True)
    truth = partial(_truth, page, unstyled=True)
    return Recipe(format, name, page.name, truth, partial(_from_text, source, "page.html", make))


def _from_text(text: Callable[[], str], name: str, make: Maker, target: Path) -> None:
    source = target.with_name(name)
    source.write_text(text(), "utf-8")
    make(source, target)


def _pandoc(options: tuple[str, ...], source: Path, target: Path) -> None:
    programs.convert_by_pandoc(source, target, *options)


def _latex(options: tuple[str, ...], source: Path, target: Path) -> None:
    programs.print_by_latex(source, target, *options)


def _through_ms(source: Path, target: Path) -> None:
    roff = source.with_suffix(".ms")
    programs.convert_by_pandoc(source, roff, "--standalone", "--variable=fontfamily:T")
    programs.print_by_groff(roff, target, "-ms")


def _saved_again(make: Maker, source: Path, target: Path) -> None:
    first = source.with_suffix(target.suffix)
    make(source, first)
    programs.convert_by_libreoffice(first, target)


def _copied(page: Page, target: Path) -> None:
    target.write_bytes(page.path.read_bytes())


def _truth(page: Page, *, unstyled: bool = False) -> str:
    return "\n".join(markdown_of(element) for element in _main(page, unstyled=unstyled))


def _deck(page: Page) -> str:
    return slides.deck_of(_main(page, unstyled=True))


def _main(page: Page, *, unstyled: bool) -> list[HtmlElement]:
    """The text of a page with plain boxes for tables that only draw one, and without tables of contents.

    Without styles, verses are set like any other preformatted text.
    """
    elements = page.main_elements()
    for element in elements:
        for frame in (inner for name in FRAMES for found in element.find_class(name) for inner in found.iter()):
            frame.tag = "div" if frame.tag in _TABLE_TAGS else frame.tag
        for contents in element.find_class("toc"):
            contents.drop_tree()
        for verse in element.find_class("verseblock") if unstyled else ():
            del verse.attrib["class"]
    return elements


_TABLE_TAGS = frozenset("table tbody thead tr td th".split())


def _main_only(page: Page, head: str, *, unstyled: bool = False) -> str:
    """A page without its navigation."""
    elements = _main(page, unstyled=unstyled)
    body = "".join(html.tostring(element, encoding="unicode", with_tail=False) for element in elements)
    return f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{head}</head><body>{body}</body></html>'


def _styles(page: Page) -> str:
    """The style sheets of a page, by an address that holds wherever the page is put."""
    elements = page.main_elements()[0].getroottree().xpath("//head/style | //head/link[@rel='stylesheet']")
    for element in elements:
        if element.get("href"):
            element.set("href", (page.path.parent / element.get("href")).as_uri())
    return "".join(html.tostring(element, encoding="unicode", with_tail=False) for element in elements)
