"""Passages out of what another server's search tool answers, in whichever of the usual shapes it does.

Structured results, JSON in a text, a text for each hit, one text with rules between the hits: nobody has agreed on one.
Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson

from refdesk.downstream.fleet.sanitize import visible
from refdesk.validation import shortened

LONGEST_PASSAGE = 8000
"""Characters of one passage that are taken: more than any answer has room for."""

LONGEST_TITLE = 200

MOST_HITS = 100

_LISTS = ("results", "hits", "documents", "docs", "items", "passages", "matches", "snippets", "content", "data")
_TEXTS = ("text", "content", "snippet", "passage", "body", "markdown", "description", "summary", "chunk")
_TITLES = ("title", "name", "heading", "section")
_URLS = ("url", "link", "href", "uri", "source_url", "sourceUrl", "contentUrl", "page_url", "source", "path", "id")
_VERSIONS = ("version", "doc_version", "docVersion")
"""The names that search tools give them, the most telling first."""

# No blank here is a line end: from each of many empty lines on, all that follow would be looked at.
_RULE = re.compile(r"^[ \t]*(?:-{5,}|={5,}|\*{5,})[ \t\r]*$", re.MULTILINE)
_FIELD = re.compile(r"^[ \t]*(TITLE|SOURCE|URL|LINK)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]]+")
_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|ref_src", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Passage:
    """One hit of another server, as far as it says what it is."""

    text: str
    title: str = ""
    url: str = ""
    version: str = ""


def passages(result: Mapping[str, Any], limit: int) -> list[Passage]:
    """The hits in a tool's result, in its order."""
    most = min(limit, MOST_HITS)
    return _first_of(_structured(result.get("structuredContent")), most) or _first_of(
        _of_content(result.get("content")), most
    )


def _first_of(passages: Iterator[Passage], most: int) -> list[Passage]:
    """No more are made than are wanted, however many there would be."""
    return list(islice((passage for passage in passages if passage.text), most))


def canonical(url: str) -> str:
    """A web address without what does not change the page: case of the host, fragment, tracking, a last slash."""
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
    # One page is often reached by both schemes.
    return urlunsplit(("https", host, parts.path.rstrip("/"), urlencode(query), ""))


def _structured(value: object, depth: int = 0) -> Iterator[Passage]:
    """The first list of objects with a text in them, wherever it stands within a few levels."""
    if depth > 3:
        return
    if isinstance(value, list):
        yield from _listed(value)
    elif isinstance(value, Mapping):
        for name in _LISTS:
            found = list(_structured(value.get(name), depth + 1))
            if found:
                yield from found
                return
        passage = _passage(value)
        if passage is not None:
            yield passage


def _listed(values: Sequence[object]) -> Iterator[Passage]:
    for value in values[:MOST_HITS]:
        if isinstance(value, str):
            yield _of_text(value)
        elif isinstance(value, Mapping) and (passage := _passage(value)) is not None:
            yield passage


def _passage(value: Mapping[str, Any]) -> Passage | None:
    about = value.get("metadata")
    about = about if isinstance(about, Mapping) else {}
    text = _first(_TEXTS, value)
    if not text:
        return None
    title, version = _first(_TITLES, value, about), _first(_VERSIONS, value, about)
    return _made(text, title, _first(_URLS, value, about), version)


def _of_content(content: object) -> Iterator[Passage]:
    for item in content[:MOST_HITS] if isinstance(content, list) else ():
        if not isinstance(item, Mapping):
            continue
        if item.get("type") == "text" and isinstance(item.get("text"), str):
            yield from _of_text_item(item)
        elif item.get("type") == "resource" and isinstance(item.get("resource"), Mapping):
            resource = item["resource"]
            if isinstance(resource.get("text"), str):
                yield _made(resource["text"], _first(_TITLES, resource), _first(("uri",), resource), "")
        elif item.get("type") == "resource_link":
            yield _made(
                _first(("description", "title", "name"), item), _first(_TITLES, item), _first(("uri",), item), ""
            )


def _of_text_item(item: Mapping[str, Any]) -> Iterator[Passage]:
    text: str = item["text"]
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = list(_structured(orjson.loads(text)))
        except orjson.JSONDecodeError:
            found = []
        if found:
            yield from found
            return
    meta = item.get("_meta")
    about = meta.get("metadata") if isinstance(meta, Mapping) else None
    parts = [part for part in _RULE.split(text, maxsplit=MOST_HITS) if part.strip()]
    for part in parts:
        yield _of_text(part, about if isinstance(about, Mapping) and len(parts) == 1 else {})


def _of_text(text: str, about: Mapping[str, Any] | None = None) -> Passage:
    """A hit that is all text: what it says of itself in lines of its own, or by a heading and an address."""
    about = about or {}
    fields = {name.upper(): value.strip() for name, value in reversed(_FIELD.findall(text[:LONGEST_PASSAGE]))}
    heading = _HEADING.search(text[:LONGEST_PASSAGE])
    address = _ADDRESS.search(text[:LONGEST_PASSAGE])
    title = fields.get("TITLE") or _first(_TITLES, about) or (heading[1] if heading else "")
    named = fields.get("SOURCE") or fields.get("URL") or fields.get("LINK") or _first(_URLS, about)
    return _made(text, title, named or (address[0].rstrip(".,;:") if address else ""), _first(_VERSIONS, about))


def _made(text: str, title: str, url: str, version: str) -> Passage:
    return Passage(
        visible(text[:LONGEST_PASSAGE])[0].strip(),
        shortened(_line(title), LONGEST_TITLE) if title else "",
        _line(url)[:2000],
        _line(version)[:100],
    )


def _line(text: str) -> str:
    return " ".join(visible(text[:4000])[0].split())


def _first(names: Iterable[str], *values: Mapping[str, Any]) -> str:
    """The first of these members that is a text with something in it."""
    for value in values:
        for name in names:
            member = value.get(name)
            if isinstance(member, str) and member.strip():
                return member
            if isinstance(member, (int, float)) and not isinstance(member, bool) and name in _VERSIONS:
                return str(member)
    return ""
