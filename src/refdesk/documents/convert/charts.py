"""Charts of Office files as tables: a row per category, a column per series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.model import Place, Table, table_from_rows

from .number_format import format_value
from .ooxml import RELATIONSHIP_ID, Package, parse_int

MAX_POINTS: Final = 2_000
"""Categories kept per chart; more can't be told apart in a drawing either."""
MAX_SERIES: Final = 100


def read_chart(package: Package, part: str, chart: Element, place: Place | None = None) -> Table | None:
    """Return the data of the chart that a part refers to, or None."""
    relationship = package.read_relationships(part).get(chart.get(RELATIONSHIP_ID, ""))
    return _build_table(package.read_xml(relationship.target), place) if relationship else None


def read_sheet_charts(package: Package, part: str, place: Place) -> Iterator[Table]:
    """Yield the data of all charts on a sheet."""
    drawing = package.find_related(part, "drawing")
    for relationship in package.read_relationships(drawing).values() if drawing else ():
        if relationship.kind == "chart" and (table := _build_table(package.read_xml(relationship.target), place)):
            yield table


def _build_table(root: Element | None, place: Place | None) -> Table | None:
    """Build a table from the cached data of a chart, or return None if there is none."""
    series = list(root.iter("{c}ser"))[:MAX_SERIES] if root is not None else []
    columns = [_read_points(each, "val", "yVal") for each in series]
    places = sorted({at for column in columns for at in column})
    if root is None or not places:
        return None
    categories = next(filter(None, (_read_points(each, "cat", "xVal") for each in series)), {})
    rows = [[categories.get(at, str(at + 1)), *(column.get(at, "") for column in columns)] for at in places]
    title = root.find("{c}chart/{c}title")
    caption = "".join(node.text or "" for node in title.iter("{a}t")).strip() if title is not None else ""
    names = [each.findtext("{c}tx//{c}v", "").strip() for each in series]
    return table_from_rows([["", *names], *rows], caption=caption, place=place)


def _read_points(series: Element, *names: str) -> dict[int, str]:
    """Return the values of a series' axis by index, formatted as in the chart."""
    axis = next((found for name in names if (found := series.find(f"{{c}}{name}")) is not None), None)
    if axis is None:
        return {}
    level = next(axis.iter("{c}lvl"), axis)
    code = axis.findtext(".//{c}formatCode", "General")
    is_number = axis.find(".//{c}numCache") is not None or axis.find(".//{c}numLit") is not None
    points = ((node.get("idx", ""), node.findtext("{c}v", "").strip()) for node in level.iter("{c}pt"))
    kept = {parse_int(at): text for at, text in points if parse_int(at, MAX_POINTS) < MAX_POINTS}
    return {at: format_value(text, code) for at, text in kept.items()} if is_number else kept
