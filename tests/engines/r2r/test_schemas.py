"""Names, places and texts are read from R2R as they were written, and no tenant's name is another's."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refdesk.calls import DEFAULT_TENANT, TenantId
from refdesk.documents.model import Chunk
from refdesk.engines.r2r.schemas import (
    decode_chunk,
    decode_description,
    decode_name,
    encode_chunks,
    encode_description,
    encode_name,
    format_position,
    make_document_uuid,
)

names = st.one_of(
    st.text(max_size=20), st.sampled_from(["a", "a · refdesk:b", " · refdesk:default", "a · refdesk:b%20"])
)
tenants = st.one_of(st.just("default"), st.text(min_size=1, max_size=20), st.sampled_from(["a", "a:b", "a/b", "%61"]))
titles = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).map(
    lambda title: " ".join(title.split()) or "x"
)


@given(tenants, names)
def test_whose_a_collection_is_can_be_read_from_its_name(tenant: str, name: str) -> None:
    assert decode_name(encode_name(TenantId(tenant), name)) == (tenant, name)


def test_the_default_tenant_has_what_bears_no_mark() -> None:
    assert encode_name(DEFAULT_TENANT, "Handbook") == "Handbook"
    assert decode_name("Handbook") == (DEFAULT_TENANT, "Handbook")


@given(tenants, names, tenants, names)
def test_two_tenants_never_have_one_collection(first: str, name: str, second: str, other: str) -> None:
    is_same = encode_name(TenantId(first), name) == encode_name(TenantId(second), other)
    assert is_same == ((first, name) == (second, other))


@given(st.tuples(tenants, names, names, names), st.tuples(tenants, names, names, names))
def test_documents_have_one_id_only_when_everything_about_them_is_the_same(first: Any, second: Any) -> None:
    assert (make_document_uuid(*first) == make_document_uuid(*second)) == (first == second)


@given(st.text(max_size=40).map(str.strip), st.text(max_size=10))
def test_a_description_keeps_the_version_of_what_is_documented(description: str, version: str) -> None:
    if "[refdesk version" not in description and not any("\ud800" <= c <= "\udfff" for c in description + version):
        assert decode_description(encode_description(description, version)) == (description, version)


@given(
    st.from_regex(r"[\w-]{1,20}", fullmatch=True),
    st.lists(titles, max_size=4).map(tuple),
    st.one_of(st.none(), st.integers(1, 9999)),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=3).map(tuple),
)
def test_a_chunks_place_is_read_from_its_first_line(section: str, path: Any, page: int | None, anchors: Any) -> None:
    chunk = Chunk("c1", "text", path, section, page, page, 0, anchors if any(anchors) else ())
    assert decode_chunk(1, f"{format_position(chunk)}\ntext") == chunk


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1), min_size=1))
def test_r2r_cuts_a_text_into_the_chunks_that_it_was_made_of(texts: list[str]) -> None:
    chunks = [Chunk(f"c{n}", text, ("A › B", "C\\"), "a", 1, 2, 1) for n, text in enumerate(texts)]
    cut = [part.strip() for part in encode_chunks(chunks).split("\n\n")]
    assert len(cut) == len(chunks)
    for part, chunk in zip(cut, chunks, strict=True):
        found = decode_chunk(1, part)
        assert found.path == ("A › B", "C\\")
        assert "".join(found.text.split()) == "".join(chunk.text.split())
