"""Pages, texts and tables that are broken, or made to do harm; each function answers the bytes of one file."""

from __future__ import annotations

import json
import random
from typing import Any

LINE = b"All work and no play. "


# Web pages


def page(body: str) -> bytes:
    return f"<!DOCTYPE html><html><head><title>Page</title></head><body>{body}</body></html>".encode()


def deep_page() -> bytes:
    return page("<div>" * 200_000 + "bottom")


def deep_page_of_formatting() -> bytes:
    """Tags that the parser opens anew in every paragraph."""
    return page("<p><b><i><u><font>" * 5_000 + "words")


def broad_tag() -> bytes:
    return page(f"<p {' '.join(f'a{at}=1' for at in range(300_000))}>words</p>")


def large_page() -> bytes:
    return page("<p>All work and no play makes a page long.</p>" * 1_000_000)


def unclosed_page() -> bytes:
    """Whatever can be left open is."""
    opened = "<table><tr><td><ul><li><a href='x><b><select><option><svg><math><title><textarea><script><!--<style>"
    return page("<p>Words before" + opened * 300)


def tables_in_tables() -> bytes:
    return page("<p>Words</p>" + "<table><tr><td>" * 900 + "x" + "</td></tr></table>" * 900)


def wide_page_table() -> bytes:
    row = '<tr><td colspan="1000000000" rowspan="1000000000">x</td><td rowspan="65534" colspan="1000">y</td></tr>'
    return page(f"<p>Words</p><table>{row * 100}</table>")


def page_that_calls(address: str) -> bytes:
    """Every tag that makes a browser fetch something."""
    named = "script iframe img embed video audio source track input".split()
    tags = "".join(f'<{name} src="{address}"></{name}>' for name in named)
    head = f'<base href="{address}"><link rel="stylesheet" href="{address}">'
    moved = f'<meta http-equiv="refresh" content="0;url={address}"><style>@import url({address});</style>'
    drawn = f'<object data="{address}"></object><svg><image href="{address}"/><use href="{address}"/></svg>'
    return page(f"{head}{moved}{tags}{drawn}<p>Words</p>")


# Markdown and reStructuredText


def repeat(piece: str, times: int, end: str = "") -> bytes:
    return (piece * times + end).encode()


def giant_table() -> bytes:
    return ("# Table\n\n" + "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n" + ("|" + "b|" * 500 + "\n") * 2_000).encode()


def aliases() -> bytes:
    """Front matter that multiplies: ten lists of ten of the one before."""
    lists = "".join(f"l{at}: &l{at} [{', '.join([f'*l{at - 1}'] * 10)}]\n" for at in range(1, 10))
    return f"---\nl0: &l0 [ha]\n{lists}title: *l9\n---\n\nWords\n".encode()


def markdown_that_reads(address: str) -> bytes:
    """Every notation by which some program includes a file."""
    path = address.removeprefix("file://")
    ways = (
        f"![x]({address})",
        f"<iframe src='{address}'></iframe>",
        f"{{!{path}!}}",
        f"!include {path}",
        f"<<< {path}",
        f'--8<-- "{path}"',
        f"{{% include '{path}' %}}",
        f"```{{include}} {path}\n```",
    )
    return ("# Words\n\n" + "\n\n".join(ways)).encode()


def rst_that_reads(address: str) -> bytes:
    """Every directive that brings something in."""
    path = address.removeprefix("file://")
    named = ("include", "literalinclude", "image", "figure", "raw:: html\n   :file", "csv-table:: x\n   :file")
    ways = [f".. {name}:: {path}".replace(":file::", ":file:") for name in named]
    ways += [f".. raw:: html\n   :url: {address}", f".. csv-table:: x\n   :url: {address}"]
    return ("Words\n=====\n\nSome words.\n\n" + "\n\n".join(ways)).encode()


def rst_that_laughs() -> bytes:
    """Substitutions of ten of the one before, a hundred million in all."""
    laughs = "".join(f".. |l{at}| replace:: {' '.join([f'|l{at - 1}|'] * 10)}\n" for at in range(1, 9))
    return f"Words |l8|\n\n.. |l0| replace:: ha\n{laughs}".encode()


def deep_rst() -> bytes:
    return "".join(" " * depth + "words\n\n" for depth in range(1_500)).encode()


def rst_lists() -> bytes:
    return ("* " * 5_000 + "words\n").encode()


# Tables in text


def long_line() -> bytes:
    return LINE * 2_300_000


def million_columns() -> bytes:
    return b"a," * 1_000_000 + b"\n" + b"1," * 1_000_000


def open_quote() -> bytes:
    return b'a,b\n"' + b"1,2\n" * 500_000


# Texts


def binary() -> bytes:
    return b"\x7fELF" + random.Random(3).randbytes(100_000)


def noise() -> bytes:
    """Every byte but zero, at random: no text, but nothing tells so at once."""
    return random.Random(4).randbytes(300_000).replace(b"\0", b"")


def halves() -> bytes:
    """Halves of characters, and half a unit at the end."""
    return b"\xff\xfe" + b"\x00\xd8" * 10_000 + b"a\x00" + b"\x00\xdc" * 10_000 + b"\x61"


def nothing_but_nul() -> bytes:
    return bytes(1_000_000)


def empty_pages() -> bytes:
    """Form feeds with nothing between them."""
    return b"Words\f\f\n\f" + b"\f" * 1_000 + b"more words"


def empty_lines() -> bytes:
    return b"Words\n" + b"\n" * 19_000_000


def list_of_everything() -> bytes:
    """A million lines that each look like a heading, a list and code."""
    return b"1. CAPITALS\n====\n    - x\n" * 300_000


# DoclingDocument JSON


def docling(**changed: Any) -> bytes:
    usual: dict[str, Any] = {
        "schema_name": "DoclingDocument",
        "version": "1.10.0",
        "name": "made",
        "body": {"self_ref": "#/body", "children": [{"$ref": "#/texts/0"}], "label": "unspecified"},
        "texts": [{"self_ref": "#/texts/0", "label": "text", "text": "Words", "orig": "Words", "children": []}],
    }
    return json.dumps(usual | changed).encode()


def references_that_loop() -> bytes:
    group = {
        "self_ref": "#/groups/0",
        "label": "list",
        "children": [{"$ref": f"#/{to}"} for to in ("groups/0", "body", "groups/1", "texts/0")],
    }
    other = {
        "self_ref": "#/groups/1",
        "label": "inline",
        "children": [{"$ref": f"#/{to}"} for to in ("groups/0", "groups/1")],
    }
    return docling(groups=[group, other], body={"self_ref": "#/body", "children": [{"$ref": "#/groups/0"}]})


def references_that_lead_out() -> bytes:
    ways = ("#/texts/-1", "#/texts/999", "#/../../etc/passwd", "file:///etc/passwd", "#/name", "")
    return docling(body={"self_ref": "#/body", "children": [{"$ref": way} for way in ways]})


def billion_cells(tall: int, wide: int, cells: int = 1) -> bytes:
    """A table of few cells that reach far."""
    cell = {
        "text": "x",
        "start_row_offset_idx": 0,
        "end_row_offset_idx": tall,
        "start_col_offset_idx": 0,
        "end_col_offset_idx": wide,
    }
    data = {"num_rows": tall, "num_cols": wide, "table_cells": [cell] * cells}
    table = {"self_ref": "#/tables/0", "label": "table", "data": data, "children": []}
    return docling(tables=[table], body={"self_ref": "#/body", "children": [{"$ref": "#/tables/0"}]})


def far_cells() -> bytes:
    """Two cells, the second a billion rows and columns away."""
    cells = [
        {
            "text": "x",
            "start_row_offset_idx": at,
            "end_row_offset_idx": at + 1,
            "start_col_offset_idx": at,
            "end_col_offset_idx": at + 1,
        }
        for at in (0, 999_999_999)
    ]
    data = {"num_rows": 10**9, "num_cols": 10**9, "table_cells": cells}
    table = {"self_ref": "#/tables/0", "label": "table", "data": data, "children": []}
    return docling(tables=[table], body={"self_ref": "#/body", "children": [{"$ref": "#/tables/0"}]})


def deep_json() -> bytes:
    return docling().replace(b'"made"', b"[" * 1_000_000 + b"]" * 1_000_000)


def deep_groups() -> bytes:
    """Lists in lists, a hundred thousand deep."""
    groups = [{"label": "list", "children": [{"$ref": f"#/groups/{at + 1}"}]} for at in range(100_000)]
    groups.append({"label": "list", "children": [{"$ref": "#/texts/0"}]})
    item = {"label": "list_item", "text": "Words", "children": []}
    return docling(groups=groups, texts=[item], body={"self_ref": "#/body", "children": [{"$ref": "#/groups/0"}]})


def numbers_beyond_reason() -> bytes:
    return docling(pages={"1": {"page_no": 1, "size": {"width": 1, "height": 1}}}).replace(
        b'"width": 1', b'"width": 1' + b"0" * 400
    )
