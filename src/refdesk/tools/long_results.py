"""Truncates long results of downstream tools, and stores the whole text as a paged resource."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from refdesk.calls import Call, Caller, text_content
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, measure_tokens
from refdesk.errors import InvalidArguments, Problem, ServerTalksNonsense

PREFIX = "refdesk://results/"

CUT_META = "refdesk/cut"
"""Metadata key that describes the truncation, as the last text item does for models."""

PAGE_CHARACTERS = 40_000
"""Page size: some ten thousand tokens of English, which every client accepts."""

RETENTION_SECONDS = 600.0
MAX_STORED_BYTES = 67_108_864
MAX_STORED_PER_CALLER = 20
"""Limits on age, total size and results per caller; the oldest are evicted first."""

SLICE_CHARACTERS = 2000
"""Characters counted at a time, so that text far beyond the budget is never tokenized."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _StoredResult:
    owner: tuple[str, str]
    text: str
    expires_at: float


class LongResults:
    """Truncates results to a budget, and serves the whole texts as resources."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._now = now
        self._max_bytes = max_bytes
        self._stored: dict[str, _StoredResult] = {}
        self._bytes = 0

    def fit(self, result: Result, tokens: int, caller: Caller, *, has_schema: bool) -> Result:
        """Return the result, truncated if needed; `has_schema` if its tool declares structured content."""
        items: Sequence[Any] = result.get("content") or ()
        texts = [_extract_text(item) for item in items]
        structured = result.get("structuredContent")
        dumped = _dump(structured) if structured is not None else b""
        if sum(map(len, texts)) <= tokens and len(dumped) <= tokens:
            return result  # a token has at least one character
        is_left_out = len(dumped) > tokens * CHARACTERS_PER_TOKEN
        if is_left_out and not _is_repeated_in(structured, (text for text in texts if 4 * len(text) >= len(dumped))):
            item = text_content(dumped.decode())
            items, texts = [*items, item], [*texts, item["text"]]
        room = _count_fitting_characters(texts, tokens)
        if room is None and not is_left_out:
            return result
        shown = room if room is not None else sum(map(len, texts))
        cut = self._cut(result, items, texts, shown, caller)
        return _drop_structured(cut, has_schema) if is_left_out else cut

    def _cut(self, result: Result, items: Sequence[Any], texts: Sequence[str], shown: int, caller: Caller) -> Result:
        """Truncate the text of a result, and add a link to the whole."""
        whole = "\n\n".join(filter(None, texts))
        uri = self._store(whole, caller)
        cut_info: dict[str, Any] = {
            "characters": sum(map(len, texts)),
            "shown": shown,
            "uri": uri,
            "pages": _count_pages(whole),
        }
        link = {"type": "resource_link", "uri": uri, "name": "the whole result", "mimeType": "text/plain"}
        content = [*_truncate_items(items, shown), text_content(_format_note(**cut_info)), link]
        return {**result, "content": content, "_meta": {**(result.get("_meta") or {}), CUT_META: cut_info}}

    # Resource provider.

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        """Return nothing: stored results are only reachable by their link."""
        return ()

    def templates(self) -> Iterable[Mapping[str, Any]]:
        """Return nothing, for the same reason."""
        return ()

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """Return a page of a stored text to its owner."""
        if not uri.startswith(PREFIX):
            return None
        id, _, query = uri.removeprefix(PREFIX).partition("?")
        stored = self._stored.get(id)
        if stored is None or stored.owner != _get_owner(call.caller) or stored.expires_at <= self._now():
            return None
        pages = _count_pages(stored.text)
        page = _parse_page(query, pages)
        start = (page - 1) * PAGE_CHARACTERS
        text = stored.text[start : start + PAGE_CHARACTERS]
        meta: dict[str, Any] = {"refdesk/page": page, "refdesk/pages": pages}
        if page < pages:
            meta["refdesk/next"] = f"{PREFIX}{id}?page={page + 1}"
        return [{"uri": uri, "mimeType": "text/plain", "text": text, "_meta": meta}]

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        """Return nothing: ids are secret."""
        return []

    # Storage.

    def _store(self, text: str, caller: Caller) -> str:
        owner = _get_owner(caller)
        now = self._now()
        owned = [id for id, stored in self._stored.items() if stored.owner == owner]
        expired = [id for id, stored in self._stored.items() if stored.expires_at <= now]
        for id in {*expired, *owned[: max(0, len(owned) - MAX_STORED_PER_CALLER + 1)]}:
            self._drop(id)
        id = secrets.token_urlsafe(16)
        self._stored[id] = _StoredResult(owner, text, now + RETENTION_SECONDS)
        self._bytes += _measure(text)
        while self._bytes > self._max_bytes and len(self._stored) > 1:
            self._drop(next(iter(self._stored)))
        return PREFIX + id

    def _drop(self, id: str) -> None:
        self._bytes -= _measure(self._stored.pop(id).text)


def _dump(structured: Any) -> bytes:
    try:
        return orjson.dumps(structured)
    except orjson.JSONEncodeError as error:
        raise ServerTalksNonsense(f"A server returned structured content that isn't valid JSON: {error}") from error


def _get_owner(caller: Caller) -> tuple[str, str]:
    return caller.tenant, caller.user


def _measure(text: str) -> int:
    """Return the memory of a string, at most: one wide character makes all of them four bytes."""
    return len(text) if text.isascii() else 4 * len(text)


def _parse_page(query: str, pages: int) -> int:
    number = query.removeprefix("page=") if query else "1"
    if number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= pages:
        return int(number[:9])
    raise InvalidArguments([Problem("uri", f"page must be one of 1 to {pages}")])


def _extract_text(item: Any) -> str:
    """Return the text of a content item or of its embedded resource."""
    holder = item.get("resource") if isinstance(item, dict) and item.get("type") == "resource" else item
    text = holder.get("text") if isinstance(holder, dict) else None
    return text if isinstance(text, str) else ""


def _replace_text(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    if item.get("type") == "resource":
        return {**item, "resource": {**item["resource"], "text": text}}
    return {**item, "text": text}


def _truncate_items(items: Sequence[Any], room: int) -> Iterable[Any]:
    """Yield the items with so many characters of text in total; items without text are unchanged."""
    for item in items:
        text = _extract_text(item)
        if not text:
            yield item
        elif room > 0:
            yield item if len(text) <= room else _replace_text(item, text[:room])
            room -= len(text)


def _count_fitting_characters(texts: Sequence[str], tokens: int) -> int | None:
    """Return the number of characters that fit the budget; None if all do."""
    room, left = 0, tokens
    for text in texts:
        for start in range(0, len(text), SLICE_CHARACTERS):
            part = text[start : start + SLICE_CHARACTERS]
            count = measure_tokens(part)
            if count > left:
                return room + len(part) * left // count
            left -= count
            room += len(part)
    return None


def _is_repeated_in(structured: Any, texts: Iterable[str]) -> bool:
    """Return whether a text repeats the structured content, as it should for text-only clients."""
    for text in texts:
        try:
            if orjson.loads(text) == structured:
                return True
        except orjson.JSONDecodeError:
            continue
    return False


def _drop_structured(cut: Result, has_schema: bool) -> Result:
    """Remove the structured content.

    If the tool declares it, the result becomes an error, as strict clients reject anything else.
    """
    rest = {name: value for name, value in cut.items() if name != "structuredContent"}
    rest["_meta"] = {**cut["_meta"], CUT_META: {**cut["_meta"][CUT_META], "structuredContent": "left out"}}
    return {**rest, "isError": True} if has_schema else rest


def _count_pages(text: str) -> int:
    return -(-len(text) // PAGE_CHARACTERS)


def _format_note(characters: int, shown: int, uri: str, pages: int) -> str:
    cut = f"{characters - shown} of {characters} characters" if shown < characters else "The structured content"
    where = f"{pages} pages (?page=2 and so on)" if pages > 1 else "one page"
    return (
        f"[{cut} {'are' if shown < characters else 'is'} left out because the result is too long. The whole text can "
        f"be read for ten minutes as the resource {uri}, in {where}.]"
    )
