"""Office files that are broken, or made to do harm to whoever reads them; each function answers the bytes of one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from tests.documents.convert.office import (
    A,
    R,
    S,
    W,
    deck,
    ooxml,
    pack_zip,
    paragraph,
    relationships,
    shape,
    word,
    workbook,
)
from tests.documents.hostile.pdf_files import deflate

OFFICE = Path(__file__).parents[2] / "files" / "office"

LAUGHS = (
    '<!DOCTYPE lol [<!ENTITY l0 "ha">' + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10)) + "]>"
)


# Zip packages


def zip_raw(parts: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Build a zip of compressed parts, each with the unpacked size that it claims."""
    body, directory = bytearray(), bytearray()
    for name, (data, claimed) in parts.items():
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(data), claimed, len(name), 0)
        directory += b"PK\x01\x02\x14\0" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\x03\x04" + common + name.encode() + data
    end = struct.pack("<HHHHIIH", 0, 0, len(parts), len(parts), len(directory), len(body), 0)
    return bytes(body + directory + b"PK\x05\x06" + end)


def _deflate(data: bytes) -> tuple[bytes, int]:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush(), len(data)


def _as_parts(package: bytes) -> dict[str, tuple[bytes, int]]:
    with ZipFile(BytesIO(package)) as archive:
        return {name: _deflate(archive.read(name)) for name in archive.namelist()}


def zip_bomb(*, honest: bool) -> bytes:
    """A part of a gigabyte, which says so or claims to have a hundred bytes."""
    bomb = deflate(b" " * 1_000_000, 1000)[2:]
    claimed = 1_000_000_000 if honest else 100
    return zip_raw({**_as_parts(word(paragraph("Words")).data), "word/document.xml": (bomb, claimed)})


def odt_bomb() -> bytes:
    """The same in another format, which a library reads."""
    bomb = deflate(b" " * 1_000_000, 1000)[2:]
    return zip_raw({**_as_parts((OFFICE / "guide.odt").read_bytes()), "content.xml": (bomb, 100)})


def overlapping_parts() -> bytes:
    """Two hundred entries of the directory that all lead to the same bytes."""
    package = bytearray(word(paragraph("Words")).data)
    start = package.index(b"PK\x01\x02")
    end = package.index(b"PK\x05\x06")
    entry = bytes(package[start : start + 46 + struct.unpack_from("<H", package, start + 28)[0]])
    directory = bytes(package[start:end]) + entry * 200
    count = struct.unpack_from("<H", package, end + 10)[0] + 200
    tail = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), start, 0)
    return bytes(package[:start]) + directory + b"PK\x05\x06" + tail


def two_hundred_thousand_parts() -> bytes:
    entry = b"PK\x01\x02" + bytes(42)
    whole = word(paragraph("Words")).data
    start = whole.index(b"PK\x01\x02")
    tail = struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 46 * 200_000, start, 0)
    return whole[:start] + entry * 200_000 + b"PK\x05\x06" + tail


def zip_in_zip(layers: int) -> bytes:
    data = b"at the bottom"
    for layer in range(layers):
        data = pack_zip({f"{layer}.zip": data})
    return data


def climbing_names() -> bytes:
    """Parts whose names lead out of any folder they are unpacked to."""
    source = _contents(word(paragraph("Words")).data)
    return pack_zip(
        {**source, "../../../../tmp/hostile.txt": "x", "/etc/hostile": "x", "C:\\hostile": "x", "a\0b": "x"}
    )


def truncated() -> bytes:
    whole = (OFFICE / "guide.docx").read_bytes()
    return whole[: len(whole) // 2]


def damaged_part() -> bytes:
    """A part whose packed bytes were overwritten."""
    whole = bytearray((OFFICE / "guide.docx").read_bytes())
    at = whole.index(b"word/document.xml") + 60
    whole[at : at + 200] = b"\xff" * 200
    return bytes(whole)


def without_main_part() -> bytes:
    return ooxml("docx", {"docProps/core.xml": "<x/>"})


def without_any_part() -> bytes:
    return pack_zip({"[Content_Types].xml": _contents(word("").data)["[Content_Types].xml"]})


def _contents(package: bytes) -> dict[str, str | bytes]:
    with ZipFile(BytesIO(package)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_part(package: bytes, name: str, content: str | bytes) -> bytes:
    """A package with one part put in or changed."""
    return pack_zip({**_contents(package), name: content})


# Compound files


def compound(*names: str, next_sector: int = 0xFFFFFFFE) -> bytes:
    """A compound file whose directory holds streams of these names, and goes on at a sector."""
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack("<IIIIIIIII", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<109I", 0, *[0xFFFFFFFF] * 108)
    table = struct.pack("<128I", 0xFFFFFFFD, next_sector, *[0xFFFFFFFF] * 126)
    entries = [_entry("Root Entry", 5, 1, 0xFFFFFFFF)]
    entries += [
        _entry(name, 2, 0xFFFFFFFF, at + 2 if at + 1 < len(names) else 0xFFFFFFFF) for at, name in enumerate(names)
    ]
    return header + table + b"".join(entries).ljust(512, b"\0")


def _entry(name: str, kind: int, child: int, sibling: int) -> bytes:
    text = name.encode("utf-16-le")
    entry = text.ljust(64, b"\0") + struct.pack("<HBBIII", len(text) + 2, kind, 1, 0xFFFFFFFF, sibling, child)
    return entry.ljust(116, b"\0") + struct.pack("<II4x", 0xFFFFFFFE, 0)


# Word


def docx_with(document: str) -> bytes:
    """A DOCX whose main part is this text, whatever it is."""
    return ooxml("docx", {"word/document.xml": document})


def laughing() -> bytes:
    """Entities of ten of the one before."""
    body = f"<w:document xmlns:w='{W}'><w:body>{paragraph('&l9;')}</w:body></w:document>"
    return docx_with(LAUGHS + body)


def outside_entity(address: str) -> bytes:
    declared = f'<!DOCTYPE x [<!ENTITY % out SYSTEM "{address}"> %out; <!ENTITY it SYSTEM "{address}">]>'
    return docx_with(f"{declared}<w:document xmlns:w='{W}'><w:body>{paragraph('&it;')}</w:body></w:document>")


def millions_of_paragraphs() -> bytes:
    return word("<w:p/>" * 3_000_000).data


def long_document() -> bytes:
    """Large, but no more than that."""
    return word("<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 30_000).data


def tables_in_tables(depth: int) -> bytes:
    return word("<w:tbl><w:tr><w:tc>" * depth + paragraph("Words") + "</w:tc></w:tr></w:tbl>" * depth).data


def wide_cells() -> bytes:
    cell = '<w:tc><w:tcPr><w:gridSpan w:val="2147483647"/></w:tcPr>' + paragraph("Wide") + "</w:tc>"
    return word(f"<w:tbl>{f'<w:tr>{cell * 3}</w:tr>' * 3}</w:tbl>").data


def styles_that_loop() -> bytes:
    style = '<w:style w:type="paragraph" w:styleId="{}"><w:name w:val="{}"/><w:basedOn w:val="{}"/></w:style>'
    styles = style.format("a", "a", "b") + style.format("b", "b", "a")
    return word(paragraph("Words", style="a"), styles=styles).data


def formula_without_bottom() -> bytes:
    return word(
        f"<w:p><m:oMath>{'<m:f><m:num>' * 20_000}<m:r><m:t>x</m:t></m:r>{'</m:num></m:f>' * 20_000}</m:oMath></w:p>"
    ).data


def document_in_document() -> bytes:
    inner = word(paragraph("Inner")).data
    outer = word(paragraph("Outer") + '<w:altChunk r:id="aFChunk"/>', aFChunk="inner.docx").data
    return with_part(with_part(outer, "word/inner.docx", inner), "word/embeddings/inner.docx", inner)


def outside_parts(address: str) -> bytes:
    """Pictures, templates, frames and fields that lead to an address."""
    drawn = f'<w:drawing><a:blip xmlns:a="{A}" r:link="image" r:embed="image_2"/></w:drawing>'
    field = f'<w:fldSimple w:instr="INCLUDETEXT &quot;{address}&quot;"><w:r><w:t>Included</w:t></w:r></w:fldSimple>'
    body = (
        paragraph("Words")
        + f'<w:p><w:r>{drawn}</w:r>{field}</w:p><w:altChunk r:id="aFChunk"/><w:subDoc r:id="subDocument"/>'
    )
    kinds = ("image", "image_2", "aFChunk", "subDocument", "attachedTemplate", "frame", "oleObject")
    return word(body, **dict.fromkeys(kinds, address)).data


def picture_of_the_system() -> bytes:
    """A part that is said to lie outside of the package, by its path."""
    drawn = f'<w:drawing><a:blip xmlns:a="{A}" r:embed="image"/></w:drawing>'
    up = "../../../../../../etc/passwd"
    return word(f"{paragraph('Words')}<w:p><w:r>{drawn}</w:r></w:p>", image=up, header="/etc/passwd", comments=up).data


# Sheets


def sheet(rows: str, *, after: str = "", shared: str = "") -> bytes:
    return workbook(f"<sheetData>{rows}</sheetData>{after}", shared=shared).data


def whole_sheet_merged() -> bytes:
    merged = '<mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells>'
    return sheet('<row r="1"><c r="A1"><v>1</v></c></row>', after=merged)


def two_far_corners() -> bytes:
    return sheet('<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>')


def many_rows() -> bytes:
    """More rows than are read, small enough to be no bomb."""
    row = "<row>" + "<c><v>1</v></c>" * 2 + "</row>"
    part = f'<worksheet xmlns="{S}"><sheetData>{row * 200_000}</sheetData></worksheet>'
    return with_part(sheet(""), "xl/worksheets/sheet1.xml", part)


def strings_claimed() -> bytes:
    part = f'<sst xmlns="{S}" count="2147483647" uniqueCount="2147483647"><si><t>One</t></si></sst>'
    cell = '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>2147483646</v></c></row>'
    return with_part(sheet(cell), "xl/sharedStrings.xml", part)


def one_string_shared_by_all() -> bytes:
    """A megabyte of text that a hundred thousand cells show."""
    cells = "".join(f'<row r="{at}"><c r="A{at}" t="s"><v>0</v></c></row>' for at in range(1, 100_001))
    return sheet(cells, shared=f"<si><t>{'long ' * 200_000}</t></si>")


def references_beyond_reason() -> bytes:
    odd = ("ZZZZZZZZZZ1", "A99999999999999999999", "A0", "A-1", "", "1A", "Ａ１", "A" * 10_000)
    return sheet("".join(f'<row r="{"9" * 30}"><c r="{name}"><v>1</v></c></row>' for name in odd))


def repeated_cells() -> bytes:
    """An OpenDocument sheet whose one cell is repeated a billion billion times."""
    often = 'repeated="2147483647"'
    text = 'office:value-type="string"><text:p>x</text:p>'
    cell = f"<table:table-cell table:number-columns-{often} {text}</table:table-cell>"
    row = f"<table:table-row table:number-rows-{often}>{cell}</table:table-row>"
    return opendocument("spreadsheet", f'<table:table table:name="A">{row}</table:table>')


def opendocument(kind: str, body: str) -> bytes:
    """An OpenDocument file of a kind, with what it holds."""
    names = {name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "table", "text")}
    declared = " ".join(f'xmlns:{name}="{uri}"' for name, uri in names.items())
    content = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    document = f"<office:document-content {declared}>{content}</office:document-content>"
    return pack_zip({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": document})


# Slides


def hundred_thousand_shapes() -> bytes:
    return deck(shape("<a:r><a:t>x</a:t></a:r>") * 100_000).data


def groups_in_groups() -> bytes:
    inner = shape("<a:r><a:t>Words</a:t></a:r>")
    return deck("<p:grpSp>" * 20_000 + inner + "</p:grpSp>" * 20_000).data


def slide_of_itself() -> bytes:
    """Slides, layouts and notes that are said to be one another."""
    made = deck(shape("<a:r><a:t>Words</a:t></a:r>"), notes={1: shape("<a:r><a:t>Note</a:t></a:r>")}).data
    own = relationships(slideLayout="slide1.xml", slideMaster="slide1.xml", notesSlide="slide1.xml", slide="slide1.xml")
    return with_part(made, "ppt/slides/_rels/slide1.xml.rels", own)


def slide_listed_often() -> bytes:
    """One slide, shown a hundred thousand times."""
    made = deck(shape("<a:r><a:t>Words</a:t></a:r>")).data
    entries = '<p:sldId id="256" r:id="slide_1"/>' * 100_000
    names = f'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:r="{R}"'
    main = f"<p:presentation {names}><p:sldIdLst>{entries}</p:sldIdLst></p:presentation>"
    return with_part(made, "ppt/presentation.xml", main)


def wide_slide_table() -> bytes:
    text = "<a:txBody><a:p><a:r><a:t>Wide</a:t></a:r></a:p></a:txBody>"
    cell = f'<a:tc gridSpan="2147483647" rowSpan="2147483647">{text}</a:tc>'
    table = f"<a:tbl>{f'<a:tr>{cell * 3}</a:tr>' * 2}</a:tbl>"
    return deck(frame_graphic(table)).data


def frame_graphic(graphic: str) -> str:
    data = f"<a:graphic><a:graphicData>{graphic}</a:graphicData></a:graphic>"
    return f"<p:graphicFrame>{data}</p:graphicFrame>"


def claiming_chart() -> bytes:
    """A chart that says to have two billion points, and puts one at the end of them."""
    names = 'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
    points = '<c:ptCount val="2147483647"/><c:pt idx="2147483646"><c:v>1</c:v></c:pt>'
    named, valued = (
        f"<c:cat><c:strCache>{points}</c:strCache></c:cat>",
        f"<c:val><c:numCache>{points}</c:numCache></c:val>",
    )
    plot = f"<c:plotArea><c:barChart><c:ser>{named}{valued}</c:ser></c:barChart></c:plotArea>"
    made = deck(shape("<a:r><a:t>Words</a:t></a:r>") + frame_graphic(f'<c:chart {names} r:id="chart"/>')).data
    made = with_part(made, "ppt/slides/_rels/slide1.xml.rels", relationships(chart="../charts/chart1.xml"))
    return with_part(made, "ppt/charts/chart1.xml", f"<c:chartSpace {names}><c:chart>{plot}</c:chart></c:chartSpace>")


def outside_pictures(address: str) -> bytes:
    made = deck(
        shape("<a:r><a:t>Words</a:t></a:r>") + '<p:pic><p:blipFill><a:blip r:link="image"/></p:blipFill></p:pic>'
    ).data
    links = relationships(image=address, hyperlink=address, video=address, slideLayout=address)
    return with_part(made, "ppt/slides/_rels/slide1.xml.rels", links)


# OpenDocument texts, books, RTF


def spaces_without_end() -> bytes:
    return opendocument("text", '<text:p>a<text:s text:c="2147483647"/>b</text:p>')


def broken_odt() -> bytes:
    return with_part((OFFICE / "guide.odt").read_bytes(), "content.xml", "<office:document-content><broken")


def lists_in_lists() -> bytes:
    return opendocument(
        "text", "<text:list><text:list-item>" * 20_000 + "<text:p>x</text:p>" + "</text:list-item></text:list>" * 20_000
    )


def repeated_text_table() -> bytes:
    cell = '<table:table-cell table:number-columns-repeated="1000000"><text:p>x</text:p></table:table-cell>'
    row = f'<table:table-row table:number-rows-repeated="1000000">{cell}</table:table-row>'
    return opendocument("text", f"<text:p>Words</text:p><table:table>{row}</table:table>")


def broken_epub() -> bytes:
    return pack_zip(
        {"mimetype": "application/epub+zip", "META-INF/container.xml": "<container><rootfiles/></container>"}
    )


def epub_outside(address: str) -> bytes:
    """A book whose chapters are a file of the system and whatever lies at an address."""
    root = '<rootfile full-path="a.opf" media-type="application/oebps-package+xml"/>'
    container = (
        f'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>{root}</rootfiles></container>'
    )
    places = enumerate(("../../../../etc/passwd", address, "a.xhtml", "a.opf"))
    items = "".join(f'<item id="i{at}" href="{place}" media-type="application/xhtml+xml"/>' for at, place in places)
    spine = "".join(f'<itemref idref="i{at}"/>' for at in range(4))
    book = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>'
    body = f'<body><p>Words</p><img src="{address}"/><iframe src="{address}"/></body>'
    return pack_zip(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            "a.opf": book,
            "a.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml">{body}</html>',
        }
    )


def deep_rtf() -> bytes:
    return b"{\\rtf1 " + b"{" * 500_000 + b"deep" + b"}" * 500_001


def broken_rtf() -> bytes:
    return b"{\\rtf1\\ansi " + b"\\bin2147483647 \\u-99999999999 \\'zz {\\*\\objdata 01" + b"\xff" * 1000


def rtf_outside(address: str) -> bytes:
    field = f'{{\\field{{\\*\\fldinst INCLUDEPICTURE "{address}"}}{{\\fldrslt shown}}}}'
    return f"{{\\rtf1\\ansi{{\\*\\template {address}}} Words {field}}}".encode()


def many_ends() -> bytes:
    """A package whose comment is full of what marks the end of one."""
    out = BytesIO(word(paragraph("Words")).data)
    with ZipFile(out, "a", ZIP_DEFLATED) as archive:
        archive.comment = b"PK\x05\x06" * 1000
    return out.getvalue()
