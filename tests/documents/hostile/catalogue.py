"""The catalogue: every hostile or broken file, the tool that is asked to convert it, and how that has to end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from tests.documents.hostile import office_files as office
from tests.documents.hostile import pdf_files as pdf
from tests.documents.hostile import text_files as text

PDF, TEXT, SHEET, SLIDES = "convert_pdf", "convert_docx", "convert_xlsx", "convert_pptx"

Ends = Literal["refused", "converted", "out of memory", "out of time", "bounded"]
REFUSED: Ends = "refused"
"""The converter itself says what is wrong."""
CONVERTED: Ends = "converted"
"""What there is to read in it is read, at no more than the usual cost."""
OUT_OF_MEMORY: Ends = "out of memory"
"""Its worker ends at the bound of its memory."""
OUT_OF_TIME: Ends = "out of time"
"""Its worker is ended at the bound of its time."""
BOUNDED: Ends = "bounded"
"""Any of these three: it is much work, and whether it is too much is up to the machine."""


class Case(NamedTuple):
    """A file, how it ends, and a pattern that the sentence or the document has to show."""

    name: str
    tool: str
    make: Callable[[], bytes]
    ends: Ends
    shows: str = ""


CASES = [
    Case("empty.pdf", PDF, bytes, REFUSED, "is empty"),
    Case("garbage.pdf", PDF, pdf.garbage, REFUSED, "damaged beyond reading"),
    Case("truncated.pdf", PDF, pdf.truncated, REFUSED, "damaged beyond reading"),
    Case("broken-xref.pdf", PDF, pdf.broken_table_of_objects, CONVERTED, "Ordinary words"),
    Case("xref-loop.pdf", PDF, pdf.table_that_follows_itself, CONVERTED, "Ordinary words"),
    Case("locked.pdf", PDF, pdf.locked, REFUSED, "protected by a password"),
    Case("flate-bomb.pdf", PDF, pdf.flate_bomb, OUT_OF_MEMORY),
    Case("nested-flate-bomb.pdf", PDF, pdf.nested_flate_bomb, OUT_OF_MEMORY),
    Case("operators.pdf", PDF, pdf.millions_of_operators, BOUNDED),
    Case("characters.pdf", PDF, pdf.millions_of_characters, OUT_OF_MEMORY),
    Case("strewn-words.pdf", PDF, pdf.hundred_thousand_words, BOUNDED),
    Case("rules.pdf", PDF, pdf.hundred_thousand_rules, BOUNDED),
    Case("forms-in-forms.pdf", PDF, pdf.forms_in_forms, OUT_OF_MEMORY),
    Case("form-in-itself.pdf", PDF, pdf.form_in_itself, OUT_OF_MEMORY),
    Case("glyph-in-itself.pdf", PDF, pdf.glyph_that_writes_itself, CONVERTED, "1 page"),
    Case("outline-loop.pdf", PDF, pdf.contents_that_loop, CONVERTED, "Ordinary words"),
    Case("deep-outline.pdf", PDF, pdf.contents_without_bottom, CONVERTED, "Ordinary words"),
    Case("tag-loop.pdf", PDF, pdf.tags_that_loop, CONVERTED, "Ordinary words"),
    Case("page-loop.pdf", PDF, pdf.pages_that_loop, CONVERTED, "Ordinary words"),
    Case("100000-pages.pdf", PDF, pdf.hundred_thousand_pages, BOUNDED, "of 100000|was stopped"),
    Case("claimed-pages.pdf", PDF, pdf.claim_of_pages, CONVERTED, "Ordinary words"),
    Case("no-size.pdf", PDF, partial(pdf.page_of_size, "0 0 0 0"), CONVERTED, "Ordinary words"),
    Case("endless-size.pdf", PDF, partial(pdf.page_of_size, f"-1{'0' * 38} 0 1{'0' * 400} 9"), CONVERTED, "1 page"),
    Case("odd-size.pdf", PDF, partial(pdf.page_of_size, "nan inf (x) /y"), CONVERTED, "Ordinary words"),
    Case("deep-arrays.pdf", PDF, pdf.deep_arrays, CONVERTED, "1 page"),
    Case("deep-dictionaries.pdf", PDF, pdf.deep_dictionaries, REFUSED, "holds no text"),
    Case("odd-filters.pdf", PDF, pdf.odd_filters, CONVERTED, "1 page"),
    Case("jbig2.pdf", PDF, partial(pdf.picture, "JBIG2Decode", 2 * 10**9, 2 * 10**9), CONVERTED, "picture"),
    Case("huge-picture.pdf", PDF, partial(pdf.picture, "FlateDecode", 60_000, 60_000), CONVERTED, "picture"),
    Case("object-stream-loop.pdf", PDF, pdf.object_stream_in_itself, REFUSED, "damaged beyond reading"),
    Case("bomb.docx", TEXT, partial(office.zip_bomb, honest=True), REFUSED, "would unpack to 1000 MB"),
    Case("lying-bomb.docx", TEXT, partial(office.zip_bomb, honest=False), REFUSED, "broken or incomplete"),
    Case("lying-bomb.odt", TEXT, office.odt_bomb, REFUSED, "broken or incomplete"),
    Case("overlapping.docx", TEXT, office.overlapping_parts, REFUSED, "lie over one another"),
    Case("200000-parts.docx", TEXT, office.two_hundred_thousand_parts, REFUSED, "more than 10,?000 parts"),
    Case("many-ends.docx", TEXT, office.many_ends, REFUSED, "broken or incomplete"),
    Case("zips.docx", TEXT, partial(office.zip_in_zip, 50), REFUSED, "no kind of document"),
    Case("climbing.docx", TEXT, office.climbing_names, CONVERTED, "Words"),
    Case("truncated.docx", TEXT, office.truncated, REFUSED, "broken or incomplete"),
    Case("damaged.docx", TEXT, office.damaged_part, REFUSED, "broken or incomplete"),
    Case("no-main-part.docx", TEXT, office.without_main_part, REFUSED, "no text part"),
    Case("no-part.docx", TEXT, office.without_any_part, REFUSED, "no text part"),
    Case("locked.docx", TEXT, partial(office.compound, "EncryptedPackage"), REFUSED, "protected by a password"),
    Case("laughs.docx", TEXT, office.laughing, REFUSED, "declares a DTD"),
    Case("paragraphs.docx", TEXT, office.millions_of_paragraphs, REFUSED, "more than 1,?500,?000 elements"),
    Case("long.docx", TEXT, office.long_document, BOUNDED),
    Case("deep-tables.docx", TEXT, partial(office.tables_in_tables, 20_000), CONVERTED, "Words"),
    Case("wide-cells.docx", TEXT, office.wide_cells, CONVERTED, "Wide"),
    Case("style-loop.docx", TEXT, office.styles_that_loop, CONVERTED, "Words"),
    Case("deep-formula.docx", TEXT, office.formula_without_bottom, CONVERTED),
    Case("nested.docx", TEXT, office.document_in_document, CONVERTED, "Outer"),
    Case("system-picture.docx", TEXT, office.picture_of_the_system, CONVERTED, "Words"),
    Case("looping.doc", TEXT, partial(office.compound, "WordDocument", next_sector=1), REFUSED, "broken or incomplete"),
    Case("hollow.doc", TEXT, partial(office.compound, "WordDocument"), REFUSED, "broken or incomplete"),
    Case("merged.xlsx", SHEET, office.whole_sheet_merged, CONVERTED, "1 sheet"),
    Case("corners.xlsx", SHEET, office.two_far_corners, CONVERTED, "1 sheet"),
    Case("rows.xlsx", SHEET, office.many_rows, BOUNDED, "left out|was stopped|memory"),
    Case("claimed-strings.xlsx", SHEET, office.strings_claimed, CONVERTED, "One"),
    Case("shared-string.xlsx", SHEET, office.one_string_shared_by_all, BOUNDED, "left out|was stopped|memory"),
    Case("references.xlsx", SHEET, office.references_beyond_reason, CONVERTED, "1 sheet"),
    Case("repeated.ods", SHEET, office.repeated_cells, CONVERTED, "1 sheet"),
    Case("shapes.pptx", SLIDES, office.hundred_thousand_shapes, BOUNDED),
    Case("deep-groups.pptx", SLIDES, office.groups_in_groups, CONVERTED),
    Case("slide-loop.pptx", SLIDES, office.slide_of_itself, CONVERTED, "Words"),
    Case("one-slide-often.pptx", SLIDES, office.slide_listed_often, BOUNDED),
    Case("wide-table.pptx", SLIDES, office.wide_slide_table, CONVERTED, "Wide"),
    Case("claiming-chart.pptx", SLIDES, office.claiming_chart, CONVERTED, "Words"),
    Case("spaces.odt", TEXT, office.spaces_without_end, CONVERTED, "a"),
    Case("broken.odt", TEXT, office.broken_odt, REFUSED, "broken"),
    Case("deep-lists.odt", TEXT, office.lists_in_lists, REFUSED, "split it"),
    Case("repeated.odt", TEXT, office.repeated_text_table, REFUSED, "split it"),
    Case("broken.epub", TEXT, office.broken_epub, REFUSED, "broken or incomplete"),
    Case("deep.rtf", TEXT, office.deep_rtf, CONVERTED, "deep"),
    Case("broken.rtf", TEXT, office.broken_rtf, BOUNDED),
    Case("deep.html", TEXT, text.deep_page, REFUSED, "nests more than 3,000"),
    Case("formatting.html", TEXT, text.deep_page_of_formatting, REFUSED, "nests more than 3,000"),
    Case("attributes.html", TEXT, text.broad_tag, REFUSED, "more than 5,000 attributes"),
    Case("large.html", TEXT, text.large_page, REFUSED, "46,000,073 characters"),
    Case("unclosed.html", TEXT, text.unclosed_page, REFUSED, "nests more than 3,000"),
    Case("deep-tables.html", TEXT, text.tables_in_tables, CONVERTED, "Words"),
    Case("wide-table.html", TEXT, text.wide_page_table, CONVERTED, "Words"),
    Case("emphasis.md", TEXT, partial(text.repeat, "*a **a _a __a ", 10_000), BOUNDED),
    Case("stars.md", TEXT, partial(text.repeat, "a**bc* ", 20_000), BOUNDED),
    Case("brackets.md", TEXT, partial(text.repeat, "[", 50_000), BOUNDED),
    Case("links.md", TEXT, partial(text.repeat, "[a](", 50_000), BOUNDED),
    Case("pictures.md", TEXT, partial(text.repeat, "![[]()", 50_000), BOUNDED),
    Case("backticks.md", TEXT, partial(text.repeat, "`a``b```c ", 30_000), BOUNDED),
    Case("angles.md", TEXT, partial(text.repeat, "<a <!-- <? <![CDATA[ ", 30_000), BOUNDED),
    Case("quotes.md", TEXT, partial(text.repeat, "> ", 100_000, "words"), REFUSED, "nests too deep"),
    Case("lists.md", TEXT, partial(text.repeat, "- ", 50_000, "words"), REFUSED, "nests too deep"),
    Case("table.md", TEXT, text.giant_table, BOUNDED),
    Case("aliases.md", TEXT, text.aliases, CONVERTED, "front matter is no valid YAML"),
    Case("laughs.rst", TEXT, text.rst_that_laughs, BOUNDED),
    Case("deep.rst", TEXT, text.deep_rst, REFUSED, "nests too deep"),
    Case("lists.rst", TEXT, text.rst_lists, REFUSED, "nests too deep"),
    Case("marks.rst", TEXT, partial(text.repeat, "*a `b |c :d:`e \n", 30_000), OUT_OF_TIME),
    Case("long-line.csv", SHEET, text.long_line, REFUSED, "cannot be read as separated values|more memory"),
    Case("columns.csv", SHEET, text.million_columns, CONVERTED, "cut after 2,000 columns"),
    Case("open-quote.csv", SHEET, text.open_quote, BOUNDED, "not closed|was stopped"),
    Case("binary.txt", TEXT, text.binary, REFUSED, "no kind of document"),
    Case("noise.txt", TEXT, text.noise, CONVERTED, "not UTF-8"),
    Case("halves.txt", TEXT, text.halves, CONVERTED, "could not be read as UTF-16"),
    Case("nul.txt", TEXT, text.nothing_but_nul, REFUSED, "is empty"),
    Case("long-line.txt", TEXT, text.long_line, REFUSED, "50,600,000 characters"),
    Case("empty-pages.txt", TEXT, text.empty_pages, CONVERTED, "more words"),
    Case("empty-lines.txt", TEXT, text.empty_lines, BOUNDED),
    Case("everything.txt", TEXT, text.list_of_everything, BOUNDED),
    Case("pdf.docx", TEXT, pdf.pdf, REFUSED, "call convert_pdf"),
    Case("docx.pdf", PDF, partial(office.tables_in_tables, 1), REFUSED, "call convert_docx"),
    Case("references-loop.json", TEXT, text.references_that_loop, REFUSED, "'#/body' leads nowhere"),
    Case("references-out.json", TEXT, text.references_that_lead_out, REFUSED, "'#/texts/-1' leads nowhere"),
    Case("billion-cells.json", TEXT, partial(text.billion_cells, 10**9, 10**9), REFUSED, "a table cell of"),
    Case("wide-cells.json", TEXT, partial(text.billion_cells, 10_000, 10_000, 500), REFUSED, "a table of"),
    Case("far-cells.json", TEXT, text.far_cells, REFUSED, "a table of"),
    Case("deep.json", TEXT, text.deep_json, REFUSED, "is not JSON"),
    Case("deep-groups.json", TEXT, text.deep_groups, CONVERTED, "Words"),
    Case("numbers.json", TEXT, text.numbers_beyond_reason, REFUSED, "is not JSON"),
]


class Calling(NamedTuple):
    """A file that tells whoever reads it to fetch an address, of a server or of a file."""

    name: str
    tool: str
    make: Callable[[str], bytes]
    ends: Ends
    shows: str


CALLING = [
    Calling("entity.docx", TEXT, office.outside_entity, REFUSED, "declares a DTD"),
    Calling("parts.docx", TEXT, office.outside_parts, CONVERTED, "Words"),
    Calling("pictures.pptx", SLIDES, office.outside_pictures, CONVERTED, "Words"),
    Calling("chapters.epub", TEXT, office.epub_outside, BOUNDED, ""),
    Calling("fields.rtf", TEXT, office.rtf_outside, CONVERTED, "Words"),
    Calling("page.html", TEXT, text.page_that_calls, CONVERTED, "Words"),
    Calling("page.md", TEXT, text.markdown_that_reads, CONVERTED, "Words"),
    Calling("page.rst", TEXT, text.rst_that_reads, CONVERTED, "Some words"),
]


class Trap(NamedTuple):
    """What lies under a name instead of a file."""

    name: str
    lay: Callable[[Path], None]
    says: str


def lay_sparse(path: Path) -> None:
    """A file of 101 MB that takes no room."""
    with path.open("wb") as file:
        file.truncate(101 * 1024 * 1024)


def lay_socket(path: Path) -> None:
    """Bound relative to its folder, since the whole path may be too long for a socket."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


TRAPS = [
    Trap("large.pdf", lay_sparse, "101 MB"),
    Trap("pipe.pdf", os.mkfifo, "not a regular file|There is no file"),
    Trap("folder.pdf", Path.mkdir, "folder|There is no file"),
    Trap("socket.pdf", lay_socket, "not a regular file|There is no file"),
    Trap("secret.pdf", link_to("../outside/secret.txt"), "There is no file"),
    Trap("passwd.pdf", link_to("/etc/passwd"), "There is no file"),
    Trap("zero.pdf", link_to("/dev/zero"), "There is no file"),
    Trap("environ.pdf", link_to("/proc/self/environ"), "There is no file"),
    Trap("itself.pdf", link_to("itself.pdf"), "There is no file"),
]
