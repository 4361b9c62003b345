"""Parses the results of other servers' search tools, in any of the usual shapes.

Structured results, JSON in a text item, one text item per hit, one text with rules between the hits: there is no
standard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson

from refdesk.downstream.fleet.sanitize import visible
from refdesk.validation import shorten

MAX_PASSAGE_CHARACTERS = 8000
"""Length of a passage: more than any answer has room for."""

MAX_TITLE_CHARACTERS = 200

MAX_HITS = 100

_LIST_FIELDS = ("results", "hits", "documents", "docs", "items", "passages", "matches", "snippets", "content", "data")
_TEXT_FIELDS = ("text", "content", "snippet", "passage", "body", "markdown", "description", "summary", "chunk")
_TITLE_FIELDS = ("title", "name", "heading", "section")
_URL_FIELDS = "url link href uri source_url sourceUrl contentUrl page_url source path id".split()
_VERSION_FIELDS = ("version", "doc_version", "docVersion")
"""Field names used by search tools, most specific first."""

# No line ends in these blanks: many empty lines would make matching quadratic.
_RULE = re.compile(r"^[ \t]*(?:-{5,}|={5,}|\*{5,})[ \t\r]*$", re.MULTILINE)
_FIELD = re.compile(r"^[ \t]*(TITLE|SOURCE|URL|LINK)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]]+")
_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|ref_src", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ForeignPassage:
    """A hit of another server, with the metadata it provides."""

    text: str
    title: str = ""
    url: str = ""
    version: str = ""
    server: str = ""
    fetched_at: str = ""


def parse_passages(result: Mapping[str, Any], limit: int) -> list[ForeignPassage]:
    """Return the hits in a tool's result, in its order."""
    for passages in (_parse_structured(result.get("structuredContent")), _parse_content(result.get("content"))):
        # Parse no more than needed.
        if found := list(islice((passage for passage in passages if passage.text), min(limit, MAX_HITS))):
            return found
    return []


def canonicalize_url(url: str) -> str:
    """Normalize a URL: host case, default port, fragment, tracking parameters, trailing slash."""
    try:
        parts = urlsplit(url.strip())
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            return ""
        port = parts.port
    except ValueError:
        return ""
    is_usual = port is None or port == {"http": 80, "https": 443}[parts.scheme.lower()]
    host = parts.hostname if is_usual else f"{parts.hostname}:{port}"
    query = [(name, value) for name, value in parse_qsl(parts.query) if not _TRACKING.fullmatch(name)]
    # Most pages are served under both schemes.
    return urlunsplit(("https", host, parts.path.rstrip("/"), urlencode(query), ""))


def _parse_structured(value: object, depth: int = 0) -> Iterator[ForeignPassage]:
    """Yield the first list of objects with a text, within a few levels."""
    if depth > 3:
        return
    if isinstance(value, list):
        for entry in value[:MAX_HITS]:
            if isinstance(entry, str):
                yield _parse_text(entry)
            elif isinstance(entry, Mapping) and (passage := _parse_object(entry)) is not None:
                yield passage
    elif isinstance(value, Mapping):
        for name in _LIST_FIELDS:
            found = list(_parse_structured(value.get(name), depth + 1))
            if found:
                yield from found
                return
        if (passage := _parse_object(value)) is not None:
            yield passage


def _parse_object(value: Mapping[str, Any]) -> ForeignPassage | None:
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    text = _find_text(_TEXT_FIELDS, value)
    if not text:
        return None
    title, version = _find_text(_TITLE_FIELDS, value, metadata), _find_text(_VERSION_FIELDS, value, metadata)
    return _build_passage(text, title, _find_text(_URL_FIELDS, value, metadata), version)


def _parse_content(content: object) -> Iterator[ForeignPassage]:
    for item in content[:MAX_HITS] if isinstance(content, list) else ():
        if not isinstance(item, Mapping):
            continue
        kind, resource = item.get("type"), item.get("resource")
        if kind == "text" and isinstance(item.get("text"), str):
            yield from _parse_text_item(item)
        elif kind == "resource" and isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
            yield _build_passage(resource["text"], _find_text(_TITLE_FIELDS, resource), _find_text(("uri",), resource))
        elif kind == "resource_link":
            text = _find_text(("description", "title", "name"), item)
            yield _build_passage(text, _find_text(_TITLE_FIELDS, item), _find_text(("uri",), item))


def _parse_text_item(item: Mapping[str, Any]) -> Iterator[ForeignPassage]:
    text: str = item["text"]
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = list(_parse_structured(orjson.loads(text)))
        except orjson.JSONDecodeError:
            found = []
        if found:
            yield from found
            return
    meta = item.get("_meta")
    metadata = meta.get("metadata") if isinstance(meta, Mapping) else None
    parts = [part for part in _RULE.split(text, maxsplit=MAX_HITS) if part.strip()]
    for part in parts:
        yield _parse_text(part, metadata if isinstance(metadata, Mapping) and len(parts) == 1 else {})


def _parse_text(text: str, metadata: Mapping[str, Any] | None = None) -> ForeignPassage:
    """Parse a plain-text hit: metadata lines, or a heading and a URL."""
    metadata = metadata or {}
    fields = {name.upper(): value.strip() for name, value in reversed(_FIELD.findall(text[:MAX_PASSAGE_CHARACTERS]))}
    heading = _HEADING.search(text[:MAX_PASSAGE_CHARACTERS])
    address = _ADDRESS.search(text[:MAX_PASSAGE_CHARACTERS])
    title = fields.get("TITLE") or _find_text(_TITLE_FIELDS, metadata) or (heading[1] if heading else "")
    source = fields.get("SOURCE") or fields.get("URL") or fields.get("LINK") or _find_text(_URL_FIELDS, metadata)
    return _build_passage(
        text, title, source or (address[0].rstrip(".,;:") if address else ""), _find_text(_VERSION_FIELDS, metadata)
    )


def _build_passage(text: str, title: str, url: str, version: str = "") -> ForeignPassage:
    return ForeignPassage(
        visible(text[:MAX_PASSAGE_CHARACTERS])[0].strip(),
        shorten(_clean_line(title), MAX_TITLE_CHARACTERS) if title else "",
        _clean_line(url)[:2000],
        _clean_line(version)[:100],
    )


def _clean_line(text: str) -> str:
    return " ".join(visible(text[:4000])[0].split())


def _find_text(names: Iterable[str], *values: Mapping[str, Any]) -> str:
    """Return the first of these fields that is a non-empty string."""
    for value in values:
        for name in names:
            member = value.get(name)
            if isinstance(member, str) and member.strip():
                return member
            if isinstance(member, (int, float)) and not isinstance(member, bool) and name in _VERSION_FIELDS:
                return str(member)
    return ""
