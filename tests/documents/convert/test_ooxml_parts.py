from __future__ import annotations

import pytest

from refdesk.documents.convert.ooxml import find_path, parse_int, parse_xml
from refdesk.errors import CannotConvert
from tests.documents.convert.office import W

STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"


@pytest.mark.parametrize(
    "xml",
    [
        f'<w:p xmlns:w="{W}"><w:r w:val="x"/></w:p>',
        f'<ns0:p xmlns:ns0="{W}"><ns0:r ns0:val="x"/></ns0:p>',
        f"<w:p xmlns:w = '{STRICT}'><w:r w:val='x'/></w:p>",
        f'<p xmlns="{W}"><v:r xmlns:v="{W}" v:val="x"/></p>',
    ],
    ids=["usual", "other-prefix", "strict", "nested"],
)
def test_namespaces_have_their_short_names_however_they_are_declared(xml: str) -> None:
    root = parse_xml(xml.encode(), "a.xml")
    assert (root.tag, root[0].tag, root[0].attrib) == ("{w}p", "{w}r", {"{w}val": "x"})


def test_namespaces_that_nobody_looks_at_keep_their_names() -> None:
    assert parse_xml(b'<a xmlns="urn:other"/>', "a.xml").tag == "{urn:other}a"


@pytest.mark.parametrize(
    "text",
    [f'xmlns:w="{W}"', f'a > xmlns:w="{W}" xmlns="{W}"'],
    ids=["declaration", "after-a-sign"],
)
def test_a_text_on_namespaces_stays_as_it_is(text: str) -> None:
    root = parse_xml(f'<w:p xmlns:w="{W}">{text}<w:t>{text}</w:t></w:p>'.encode(), "a.xml")
    assert (root.text, root[0].text) == (text, text)


def test_an_attribute_on_namespaces_stays_as_it_is() -> None:
    root = parse_xml(f"<w:p xmlns:w='{W}' alt='xmlns:w=\"{W}\"'/>".encode(), "a.xml")
    assert root.get("alt") == f'xmlns:w="{W}"'


def test_raw_text_is_text_whatever_it_looks_like() -> None:
    raw = f'<w:p xmlns:w="{W}">a & b</w:p>'
    root = parse_xml(f'<w:p xmlns:w="{W}"><!-- <![CDATA[ --><w:t><![CDATA[{raw}]]> c</w:t></w:p>'.encode(), "a.xml")
    assert (root.tag, root[0].text) == ("{w}p", f"{raw} c")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1"])
def test_a_part_is_read_in_whatever_encoding_it_states(encoding: str) -> None:
    xml = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?><w:p xmlns:w="{W}">grün</w:p>'
    root = parse_xml(xml.encode(encoding), "a.xml")
    assert (root.tag, root.text) == ("{w}p", "grün")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-7", "cp037"])
def test_a_dtd_hides_in_no_encoding(encoding: str) -> None:
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    body = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    data = head.encode("ascii") + body.encode(encoding) if encoding == "cp037" else (head + body).encode(encoding)
    with pytest.raises(CannotConvert):
        parse_xml(data, "a.xml")


@pytest.mark.parametrize("data", [b"", b"<a>", b'<?xml version="1.0" encoding="zlib"?><a/>', b"\xff\xfea", b"<!--<a/>"])
def test_what_is_no_xml_is_said_to_be_broken(data: bytes) -> None:
    with pytest.raises(CannotConvert, match=r"'a\.xml' is not well-formed"):
        parse_xml(data, "a.xml")


def test_steps_down_lead_to_the_first_element_or_nowhere() -> None:
    root = parse_xml(b"<a><b><c n='1'/><c n='2'/></b></a>", "a.xml")
    found = find_path(root, "b", "c")
    assert found is not None
    assert found.get("n") == "1"
    assert find_path(root, "x", "c") is None
    assert find_path(None, "b") is None


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), (None, 7), ("", 7), ("-1", 7), ("x", 7), ("9" * 5000, 7), ("٣", 3)]
)
def test_only_numbers_of_a_sane_length_are_numbers(text: str | None, number: int) -> None:
    assert parse_int(text, 7) == number
