"""PDFs that are broken, or made to do harm to whoever reads them; each function answers the bytes of one."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping

CATALOG = "<< /Type /Catalog /Pages 2 0 R >>"
ONE_PAGE = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
FONTS = "/Resources << /Font << /F 5 0 R >> >>"
PAGE = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {FONTS} /Contents 4 0 R >>"
HELVETICA = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
GREETING = b"BT /F 12 Tf 72 700 Td (Ordinary words) Tj ET"


def stream(data: bytes, entries: str = "") -> bytes:
    """A stream object's content."""
    return f"<< {entries} /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream"


def pdf(changed: Mapping[int, str | bytes] | None = None, *, trailer: str = "", startxref: int | None = None) -> bytes:
    """One page that greets, with some of its objects changed or more of them: 1 is the catalog, 2 the tree of pages,
    3 the page, 4 what is written on it and 5 the font."""
    usual: dict[int, str | bytes] = {1: CATALOG, 2: ONE_PAGE, 3: PAGE, 4: stream(GREETING), 5: HELVETICA}
    out, places = bytearray(b"%PDF-1.7\n"), {}
    for number, content in sorted((usual | dict(changed or {})).items()):
        places[number] = len(out)
        out += f"{number} 0 obj\n".encode() + (content.encode() if isinstance(content, str) else content)
        out += b"\nendobj\n"
    size, table = max(places) + 1, len(out)
    out += f"xref\n0 {size}\n0000000000 65535 f \n".encode()
    for number in range(1, size):
        out += f"{places[number]:010} 00000 n \n".encode() if number in places else b"0000000000 65535 f \n"
    where = table if startxref is None else startxref
    return bytes(out + f"trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{where}\n%%EOF\n".encode())


def deflate(block: bytes, times: int) -> bytes:
    """Return a block repeated and compressed; it is compressed once, so that even a gigabyte is fast."""
    packer = zlib.compressobj(9)
    first = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (times - 1) + b"\x03\x00"


def on_the_page(content: bytes) -> bytes:
    return pdf({4: stream(content)})


def make_packed_page(block: bytes, times: int, filters: str = "/FlateDecode") -> bytes:
    return pdf({4: stream(deflate(block, times), f"/Filter {filters}")})


def garbage() -> bytes:
    return b"%PDF-1.7\n" + random.Random(1).randbytes(100_000)


def truncated() -> bytes:
    """What a download that broke off leaves: the catalog came last, and never came."""
    return b"%PDF-1.7\n" + b"".join(b"%d 0 obj\n%s\nendobj\n" % (n, stream(GREETING)) for n in range(3, 9))[:-40]


def broken_table_of_objects() -> bytes:
    return pdf(startxref=999_999_999)


def table_that_follows_itself() -> bytes:
    whole = pdf()
    return pdf(trailer=f"/Prev {whole.index(b'xref')}")


def locked() -> bytes:
    """The keys are no keys for an empty password, and there is no other."""
    keys = "41" * 32
    locks = f"/Filter /Standard /V 1 /R 2 /P -4 /O <{keys}> /U <{keys}>"
    return pdf({6: f"<< {locks} >>"}, trailer="/Encrypt 6 0 R /ID [<00> <00>]")


def flate_bomb() -> bytes:
    """A gigabyte of spaces in a megabyte."""
    return make_packed_page(b" " * 1_000_000, 1000)


def nested_flate_bomb() -> bytes:
    """The same, packed once more."""
    packed = zlib.compress(deflate(b" " * 1_000_000, 1000), 9)
    return pdf({4: stream(packed, "/Filter [/FlateDecode /FlateDecode]")})


def millions_of_operators() -> bytes:
    return make_packed_page(b"0 0 m 9 9 l S\n" * 10_000, 100)


def millions_of_characters() -> bytes:
    """Three million letters, all in one place."""
    return make_packed_page(b"BT /F 9 Tf 72 700 Td (abc) Tj ET\n" * 10_000, 100)


def hundred_thousand_words() -> bytes:
    """Words strewn over one page, so that no two are on a line."""
    dice = random.Random(2)
    words = (f"1 0 0 1 {dice.uniform(0, 600):.2f} {dice.uniform(0, 780):.2f} Tm (word) Tj\n" for _ in range(100_000))
    return on_the_page(f"BT /F 4 Tf {''.join(words)} ET".encode())


def hundred_thousand_rules() -> bytes:
    """Lines across and down, as if for a table of a billion cells."""
    across = (f"0 {at / 64:.3f} m 612 {at / 64:.3f} l S\n" for at in range(50_000))
    down = (f"{at / 82:.3f} 0 m {at / 82:.3f} 792 l S\n" for at in range(50_000))
    return on_the_page("".join((*across, *down)).encode() + GREETING)


def forms_in_forms() -> bytes:
    """Ten forms, each of which shows the next one ten times: ten billion in all."""
    last = 16
    forms = {
        number: stream(
            b"/X Do " * 10 if number < last else GREETING,
            f"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X {number + 1} 0 R >> >>",
        )
        for number in range(6, last + 1)
    }
    page = (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >> /Contents 4 0 R >>"
    )
    return pdf({3: page, 4: stream(b"/X Do"), **forms})


def form_in_itself() -> bytes:
    own = "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >>"
    page = PAGE.replace("/Font", "/XObject << /X 6 0 R >> /Font")
    return pdf({3: page, 4: stream(GREETING + b" /X Do"), 6: stream(b"/X Do /X Do", own)})


def glyph_that_writes_itself() -> bytes:
    font = (
        "<< /Type /Font /Subtype /Type3 /FontBBox [0 0 9 9] /FontMatrix [1 0 0 1 0 0] /FirstChar 97 /LastChar 97 "
        "/Widths [9] /Encoding << /Differences [97 /a] >> /CharProcs << /a 6 0 R >> /Resources << /Font << /F 5 0 R >> "
        ">> >>"
    )
    return pdf({4: stream(b"BT /F 9 Tf (a) Tj ET"), 5: font, 6: stream(b"9 0 d0 BT /F 9 Tf (aa) Tj ET")})


def contents_that_loop() -> bytes:
    return pdf(
        {
            1: "<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>",
            6: "<< /First 7 0 R /Last 8 0 R >>",
            7: "<< /Title (One) /Next 8 0 R /First 8 0 R /Parent 6 0 R /Dest [3 0 R /Fit] >>",
            8: "<< /Title (Two) /Next 7 0 R /First 7 0 R /Parent 7 0 R /Dest [3 0 R /Fit] >>",
        }
    )


def contents_without_bottom() -> bytes:
    """Thirty thousand entries, each below the one before."""
    last = 30_006
    entries = {at: f"<< /Title (Deep) /First {at + 1} 0 R /Dest [3 0 R /Fit] >>" for at in range(7, last)}
    catalog = "<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>"
    return pdf({1: catalog, 6: "<< /First 7 0 R >>", **entries, last: "<< /Title (Bottom) >>"})


def tags_that_loop() -> bytes:
    return pdf(
        {
            1: "<< /Type /Catalog /Pages 2 0 R /MarkInfo << /Marked true >> /StructTreeRoot 6 0 R >>",
            3: PAGE.replace("/Type /Page ", "/Type /Page /StructParents 0 "),
            4: stream(b"/P << /MCID 0 >> BDC " + GREETING + b" EMC"),
            6: "<< /Type /StructTreeRoot /K 7 0 R /ParentTree << /Nums [0 [8 0 R]] >> >>",
            7: "<< /S /Table /P 8 0 R /K [8 0 R 7 0 R] >>",
            8: "<< /S /TR /P 7 0 R /K [7 0 R 8 0 R << /Type /MCR /Pg 3 0 R /MCID 0 >>] /Pg 3 0 R >>",
        }
    )


def pages_that_loop() -> bytes:
    return pdf(
        {2: "<< /Type /Pages /Kids [3 0 R 2 0 R 6 0 R] /Count 3 >>", 6: "<< /Type /Pages /Kids [2 0 R] /Count 9 >>"}
    )


def hundred_thousand_pages() -> bytes:
    """A hundred thousand pages that are one and the same."""
    return pdf({2: f"<< /Type /Pages /Kids [{'3 0 R ' * 100_000}] /Count 100000 >>"})


def claim_of_pages() -> bytes:
    return pdf({2: ONE_PAGE.replace("/Count 1", "/Count 2147483647")})


def page_of_size(box: str) -> bytes:
    return pdf({3: PAGE.replace("0 0 612 792", box)})


def deep_arrays() -> bytes:
    return pdf({3: PAGE.replace("/Parent", f"/Deep {'[' * 200_000}{']' * 200_000} /Parent")})


def deep_dictionaries() -> bytes:
    return pdf({3: PAGE.replace("/Parent", f"/Deep {'<< /A ' * 100_000}1{'>>' * 100_000} /Parent")})


def odd_filters() -> bytes:
    names = " ".join(("/JBIG2Decode", "/CCITTFaxDecode", "/Crypt", "/Unheard-Of", "/LZWDecode", "/RunLengthDecode"))
    return pdf({4: stream(GREETING, f"/Filter [{names}]")})


def picture(filter: str, width: int = 2_000_000_000, height: int = 2_000_000_000) -> bytes:
    size = f"/Width {width} /Height {height} /BitsPerComponent 8 /ColorSpace /DeviceRGB"
    page = PAGE.replace("/Font", "/XObject << /X 6 0 R >> /Font")
    image = stream(b"\x97JB2\r\n\x1a\n" + b"\xff" * 1000, f"/Type /XObject /Subtype /Image {size} /Filter /{filter}")
    return pdf({3: page, 4: stream(b"600 0 0 700 0 0 cm /X Do"), 6: image})


def object_stream_in_itself() -> bytes:
    """The catalog is said to lie in a stream that lies in itself."""
    inner = b"6 0 1 0 << /Type /ObjStm >>"
    out = b"%PDF-1.7\n"
    objects = stream(inner, "/Type /ObjStm /N 2 /First 8 /Extends 6 0 R")
    table_at = len(out)
    rows = b"".join(bytes((2, 0, 6, number)) for number in range(7))
    table = stream(rows, "/Type /XRef /Size 7 /W [1 2 1] /Root 1 0 R")
    return (
        out + b"9 0 obj\n" + table + b"\nendobj\n6 0 obj\n" + objects + b"\nendobj\nstartxref\n%d\n%%%%EOF" % table_at
    )
