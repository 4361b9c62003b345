"""Office files for tests: small ones that were written by real programs, and packages put together by hand."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from refdesk.documents.convert import convert
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Document

FILES = Path(__file__).parents[2] / "files" / "office"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
P = "http://schemas.openxmlformats.org/presentationml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
M = "http://schemas.openxmlformats.org/officeDocument/2006/math"
_MAIN = {
    "docx": ("word/document.xml", "wordprocessingml.document"),
    "xlsx": ("xl/workbook.xml", "spreadsheetml.sheet"),
    "pptx": ("ppt/presentation.xml", "presentationml.presentation"),
}


def source(name: str) -> SourceFile:
    """One of the files that real programs wrote."""
    return SourceFile((FILES / name).read_bytes(), name)


def convert_file(name: str, *, share: float = 1) -> Document:
    """Convert one of these files, or the first part of it, by the format that it has."""
    data = (FILES / name).read_bytes()
    return convert(data[: int(len(data) * share)], name)


def pack_zip(parts: Mapping[str, str | bytes]) -> bytes:
    """Build a zip archive of these parts."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def unpack_zip(data: bytes) -> dict[str, bytes]:
    """Return the parts of a zip archive."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def ooxml(kind: str, parts: Mapping[str, str]) -> bytes:
    """An OOXML package with what makes it one."""
    main, family = _MAIN[kind]
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override '
        f'PartName="/{main}" ContentType="application/vnd.openxmlformats-officedocument.{family}.main+xml"/></Types>'
    )
    return pack_zip({"[Content_Types].xml": types, "_rels/.rels": relationships(officeDocument=main), **parts})


def relationships(**targets: str) -> str:
    """A part of relationships: each has its kind for its id, unless a number follows it (`slide_2`)."""
    nodes = "".join(
        f'<Relationship Id="{id}" Type="{R}/{id.partition("_")[0]}" Target="{target}"'
        + (' TargetMode="External"/>' if "://" in target else "/>")
        for id, target in targets.items()
    )
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{nodes}</Relationships>'
    )


def word(body: str, *, styles: str = "", numbering: str = "", footnotes: str = "", **links: str) -> SourceFile:
    """A DOCX file with this body."""
    names = f'xmlns:w="{W}" xmlns:r="{R}" xmlns:m="{M}"'
    parts = {
        "word/document.xml": f"<w:document {names}><w:body>{body}</w:body></w:document>",
        "word/styles.xml": f'<w:styles xmlns:w="{W}">{styles}</w:styles>',
        "word/numbering.xml": f'<w:numbering xmlns:w="{W}">{numbering}</w:numbering>',
        "word/footnotes.xml": f'<w:footnotes xmlns:w="{W}">{footnotes}</w:footnotes>',
        "word/_rels/document.xml.rels": relationships(
            styles="styles.xml", numbering="numbering.xml", footnotes="footnotes.xml", **links
        ),
    }
    return SourceFile(ooxml("docx", parts), "made.docx")


def paragraph(text: str, *, style: str = "", properties: str = "", run: str = "") -> str:
    """A paragraph of one run."""
    named = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{named}{properties}</w:pPr><w:r><w:rPr>{run}</w:rPr><w:t>{text}</w:t></w:r></w:p>"


def workbook(*sheets: str, shared: str = "", styles: str = "", names: str = "ABCDEFG", states: str = "") -> SourceFile:
    """An XLSX file with these sheets, each given as what stands inside of its `worksheet`."""
    numbered = list(zip(names, sheets, strict=False))
    entries = "".join(
        f'<sheet name="{name}" sheetId="{at}" r:id="worksheet_{at}"{states if at == 2 else ""}/>'
        for at, (name, _) in enumerate(numbered, 1)
    )
    targets = {f"worksheet_{at}": f"worksheets/sheet{at}.xml" for at in range(1, len(sheets) + 1)}
    parts = {
        "xl/workbook.xml": f'<workbook xmlns="{S}" xmlns:r="{R}"><sheets>{entries}</sheets></workbook>',
        "xl/sharedStrings.xml": f'<sst xmlns="{S}">{shared}</sst>',
        "xl/styles.xml": f'<styleSheet xmlns="{S}">{styles}</styleSheet>',
        "xl/_rels/workbook.xml.rels": relationships(sharedStrings="sharedStrings.xml", styles="styles.xml", **targets),
        **{
            f"xl/worksheets/sheet{at}.xml": f'<worksheet xmlns="{S}">{sheet}</worksheet>'
            for at, sheet in enumerate(sheets, 1)
        },
    }
    return SourceFile(ooxml("xlsx", parts), "made.xlsx")


def deck(
    *slides: str,
    notes: Mapping[int, str] | None = None,
    attributes: Mapping[int, str] | None = None,
    layout: str = "",
) -> SourceFile:
    """A PPTX file with these slides, each given as its shapes, and the shapes of the layout that they share."""
    notes, attributes = notes or {}, attributes or {}
    entries = "".join(f'<p:sldId id="{255 + at}" r:id="slide_{at}"/>' for at in range(1, len(slides) + 1))
    names = f'xmlns:p="{P}" xmlns:a="{A}" xmlns:r="{R}"'
    parts = {
        "ppt/presentation.xml": f"<p:presentation {names}><p:sldIdLst>{entries}</p:sldIdLst>"
        '<p:sldSz cx="9144000" cy="6858000"/></p:presentation>',
        "ppt/_rels/presentation.xml.rels": relationships(
            **{f"slide_{at}": f"slides/slide{at}.xml" for at in range(1, len(slides) + 1)}
        ),
    }
    for at, shapes in enumerate(slides, 1):
        tree = f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>"
        parts[f"ppt/slides/slide{at}.xml"] = f"<p:sld {names} {attributes.get(at, '')}>{tree}</p:sld>"
        links = {"slideLayout": "../slideLayouts/layout.xml"}
        links |= {"notesSlide": f"../notesSlides/notes{at}.xml"} if at in notes else {}
        parts[f"ppt/slides/_rels/slide{at}.xml.rels"] = relationships(**links)
    tree = f"<p:cSld><p:spTree>{layout}</p:spTree></p:cSld>"
    parts["ppt/slideLayouts/layout.xml"] = f"<p:sldLayout {names}>{tree}</p:sldLayout>"
    for at, shapes in notes.items():
        tree = f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>"
        parts[f"ppt/notesSlides/notes{at}.xml"] = f"<p:notes {names}>{tree}</p:notes>"
    return SourceFile(ooxml("pptx", parts), "made.pptx")


def shape(*paragraphs: str, placeholder: str = "", index: int | None = None, top: int | None = None) -> str:
    """A shape with these paragraphs, each given as what stands inside of its `a:p`; its top is in points."""
    kind = f'type="{placeholder}" ' if placeholder else ""
    place = f'idx="{index}" ' if index is not None else ""
    held = f"<p:ph {kind}{place}/>" if kind or place else ""
    frame = f'<a:xfrm><a:off x="0" y="{(top or 0) * 12_700}"/><a:ext cx="12700" cy="12700"/></a:xfrm>'
    box = f"<p:spPr>{frame}</p:spPr>" if top is not None else ""
    text = "".join(f"<a:p>{inside}</a:p>" for inside in paragraphs)
    named = f'<p:nvSpPr><p:cNvPr id="2" name="x"/><p:cNvSpPr/><p:nvPr>{held}</p:nvPr></p:nvSpPr>'
    return f"<p:sp>{named}{box}<p:txBody><a:bodyPr/>{text}</p:txBody></p:sp>"
