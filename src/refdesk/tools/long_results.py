"""No result of a server fills a model's window: what is beyond the budget is kept for a while, to be read in pages."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from refdesk.calls import Call, Caller, text_content
from refdesk.documents.tokens import MAX_WORD, count_tokens
from refdesk.errors import InvalidArguments, Problem, ServerTalksNonsense

PREFIX = "refdesk://results/"

CUT_META = "refdesk/cut"
"""Where a result that was cut says for programs what its last text says for models."""

PAGE_CHARACTERS = 40_000
"""Of a page: some ten thousand tokens of English, which every client takes at once."""

KEEP_SECONDS = 600.0
KEEP_BYTES = 67_108_864
KEEP_OF_ONE = 20
"""How long, how much in all, and how many of one caller are kept; the oldest go first."""

CHARACTERS_A_TOKEN = 4
"""About, of what is no words: JSON that is left out as a whole, digits without end."""

MOST_CHARACTERS_A_TOKEN = 20
"""Of any text: letters without end and blanks without end are few tokens to the vocabulary here, and many to models."""

SLICE = 2000
"""Characters that are counted at a time: what lies far beyond the budget is never looked at."""

_NO_WORD = re.compile(f"[0-9A-Za-z]{{{MAX_WORD + 1},}}")

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: tuple[str, str]
    text: str
    until: float


class LongResults:
    """Cuts results to their budget, and is the family of resources under which the rest is read."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, keep_bytes: int = KEEP_BYTES) -> None:
        self._now = now
        self._keep_bytes = keep_bytes
        self._kept: dict[str, _Kept] = {}
        self._bytes = 0

    def fit(self, result: Result, tokens: int, caller: Caller, *, has_schema: bool) -> Result:
        """The result itself, or as much of it as the budget allows; `has_schema` tells that its tool promises
        structured content."""
        items: Sequence[Any] = result.get("content") or ()
        texts = [_text_of(item) for item in items]
        structured = result.get("structuredContent")
        written = _written(structured) if structured is not None else b""
        if sum(map(len, texts)) <= tokens and len(written) <= tokens:
            return result  # no token is shorter than a character
        is_left_out = len(written) > tokens * CHARACTERS_A_TOKEN
        if is_left_out and not _is_said(structured, (text for text in texts if 4 * len(text) >= len(written))):
            said = text_content(written.decode())
            items, texts = [*items, said], [*texts, said["text"]]
        room = _room(texts, tokens)
        if room is None and not is_left_out:
            return result
        shown = room if room is not None else sum(map(len, texts))
        cut = self._cut(result, items, texts, shown, caller)
        return _without_structure(cut, has_schema) if is_left_out else cut

    def _cut(self, result: Result, items: Sequence[Any], texts: Sequence[str], shown: int, caller: Caller) -> Result:
        """The result with so many characters of its text, and the way to all of it."""
        whole = "\n\n".join(filter(None, texts))
        uri = self._keep(whole, caller)
        told: dict[str, Any] = {"characters": sum(map(len, texts)), "shown": shown, "uri": uri, "pages": _pages(whole)}
        link = {"type": "resource_link", "uri": uri, "name": "the whole result", "mimeType": "text/plain"}
        content = [*_shortened(items, shown), text_content(_sentence(**told)), link]
        return {**result, "content": content, "_meta": {**(result.get("_meta") or {}), CUT_META: told}}

    # The family of resources.

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        """None are listed: whoever has one was given its link."""
        return ()

    def templates(self) -> Iterable[Mapping[str, Any]]:
        """None either, for the same reason."""
        return ()

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """A page of a kept text, for the caller whose result it was."""
        if not uri.startswith(PREFIX):
            return None
        id, _, query = uri.removeprefix(PREFIX).partition("?")
        kept = self._kept.get(id)
        if kept is None or kept.owner != _owner(call.caller) or kept.until <= self._now():
            return None
        pages = _pages(kept.text)
        page = _page(query, pages)
        start = (page - 1) * PAGE_CHARACTERS
        text = kept.text[start : start + PAGE_CHARACTERS]
        meta: dict[str, Any] = {"refdesk/page": page, "refdesk/pages": pages}
        if page < pages:
            meta["refdesk/next"] = f"{PREFIX}{id}?page={page + 1}"
        return [{"uri": uri, "mimeType": "text/plain", "text": text, "_meta": meta}]

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        """Nothing: ids are secrets."""
        return []

    # What is kept.

    def _keep(self, text: str, caller: Caller) -> str:
        owner = _owner(caller)
        now = self._now()
        own = [id for id, kept in self._kept.items() if kept.owner == owner]
        over = [id for id, kept in self._kept.items() if kept.until <= now]
        for id in {*over, *own[: max(0, len(own) - KEEP_OF_ONE + 1)]}:
            self._drop(id)
        id = secrets.token_urlsafe(16)
        self._kept[id] = _Kept(owner, text, now + KEEP_SECONDS)
        self._bytes += _size(text)
        while self._bytes > self._keep_bytes and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        return PREFIX + id

    def _drop(self, id: str) -> None:
        self._bytes -= _size(self._kept.pop(id).text)


def _written(structured: Any) -> bytes:
    try:
        return orjson.dumps(structured)
    except orjson.JSONEncodeError as error:
        raise ServerTalksNonsense(f"A server gave structured content that cannot be passed on: {error}") from error


def _owner(caller: Caller) -> tuple[str, str]:
    return caller.tenant, caller.user


def _size(text: str) -> int:
    """Bytes in memory, at most: a single character beyond the first plane makes all of them as wide."""
    return len(text) if text.isascii() else 4 * len(text)


def _page(query: str, pages: int) -> int:
    number = query.removeprefix("page=") if query else "1"
    if number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= pages:
        return int(number[:9])
    raise InvalidArguments([Problem("uri", f"page must be one of 1 to {pages}")])


def _text_of(item: Any) -> str:
    """The text that an item carries, itself or in a resource that it holds."""
    holder = item.get("resource") if isinstance(item, dict) and item.get("type") == "resource" else item
    text = holder.get("text") if isinstance(holder, dict) else None
    return text if isinstance(text, str) else ""


def _with_text(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    if item.get("type") == "resource":
        return {**item, "resource": {**item["resource"], "text": text}}
    return {**item, "text": text}


def _shortened(items: Sequence[Any], room: int) -> Iterable[Any]:
    """The items with so many characters of text between them; what has no text is left alone."""
    for item in items:
        text = _text_of(item)
        if not text:
            yield item
        elif room > 0:
            yield item if len(text) <= room else _with_text(item, text[:room])
            room -= len(text)


def _room(texts: Sequence[str], tokens: int) -> int | None:
    """The characters that the budget has room for; None when it has for all."""
    room, left = 0, tokens
    for text in texts:
        for start in range(0, len(text), SLICE):
            part = text[start : start + SLICE]
            count = _tokens(part)
            if count > left:
                return room + len(part) * left // count
            left -= count
            room += len(part)
    return None


def _tokens(text: str) -> int:
    """As models count them: to the vocabulary, a run that is no word is one unknown token, however long it is."""
    counted = count_tokens(text) + sum(len(run) // CHARACTERS_A_TOKEN for run in _NO_WORD.findall(text))
    return max(counted, len(text) // MOST_CHARACTERS_A_TOKEN)


def _is_said(structured: Any, texts: Iterable[str]) -> bool:
    """Whether a text says the same, as it should for clients that look at nothing else."""
    for text in texts:
        try:
            if orjson.loads(text) == structured:
                return True
        except orjson.JSONDecodeError:
            continue
    return False


def _without_structure(cut: Result, has_schema: bool) -> Result:
    """The same without its structured content. If its tool promises some, it is an error: strict clients take nothing
    else without it."""
    rest = {name: value for name, value in cut.items() if name != "structuredContent"}
    rest["_meta"] = {**cut["_meta"], CUT_META: {**cut["_meta"][CUT_META], "structuredContent": "left out"}}
    return {**rest, "isError": True} if has_schema else rest


def _pages(text: str) -> int:
    return -(-len(text) // PAGE_CHARACTERS)


def _sentence(characters: int, shown: int, uri: str, pages: int) -> str:
    cut = f"{characters - shown} of {characters} characters" if shown < characters else "The structured content"
    where = f"{pages} pages (?page=2 and so on)" if pages > 1 else "one page"
    return (
        f"[{cut} {'are' if shown < characters else 'is'} left out here: this is too long. The whole text can be read "
        f"for ten minutes as the resource {uri}, in {where}.]"
    )
