"""The policy that keeps blocked keywords out of every answer, whichever tool or server it comes from.

It's beside the tools because it renders a result again from its tool's result model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import ValidationError

from refdesk.calls import CONSOLE, Answer, Call, Handler, ToolEntry, text_content
from refdesk.errors import RefdeskError
from refdesk.tools.budget import HIDDEN, Blocklist, TextBlocked
from refdesk.tools.registry import Tool, build_failure

_CONSOLE_DOCUMENTS = frozenset(f"{CONSOLE}{name}" for name in ("collections", "documents", "document", "read"))
"""Console methods that return text of documents."""

_KEPT = frozenset({"type", "mimeType", "data", "blob"})
"""Fields of content items that aren't text for readers."""


_NESTED = frozenset({"messages", "content", "resource"})
"""Fields that contain items with such fields."""


class ScreenAnswers:
    """Screening policy: redacts or hides the texts that contain a blocked keyword, and leaves the rest as it is.

    A tool's answer without any other text is an error, and so is a resource. Results of downstream servers may have any
    form.
    """

    def __init__(self, blocklist: Blocklist) -> None:
        self._blocklist = blocklist

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        try:
            answer = await proceed(call)
        except RefdeskError as error:
            error.change_texts(self._blocklist.mask_values)
            raise
        result = answer.result
        if call.method == "tools/call":
            return Answer(self._screen_tool_result(call.tool, result))
        if call.method == "resources/read" and isinstance(contents := result.get("contents"), list):
            screened = [self._screen_resource(item) for item in contents if isinstance(item, Mapping)]
            return Answer({**result, "contents": screened})
        if call.method == "resources/list":
            return Answer({**result, "resources": self._drop_blocked(result["resources"])})
        if call.method == "completion/complete" and isinstance(completion := result.get("completion"), Mapping):
            values = self._drop_blocked(completion.get("values", ()))
            return Answer({**result, "completion": {**completion, "values": values}})
        if call.method == "prompts/get":
            return Answer(dict(self._screen_fields(result)))
        if call.method in _CONSOLE_DOCUMENTS:
            return Answer(self._blocklist.mask_values(result))
        return answer

    def _screen_tool_result(self, tool: ToolEntry | None, result: dict[str, Any]) -> dict[str, Any]:
        structured, content = result.get("structuredContent"), result.get("content", ())
        if "_meta" in result:
            result = {**result, "_meta": self._blocklist.mask_values(result["_meta"])}
        screened = self._blocklist.mask_values(structured)
        kind = tool.result if isinstance(tool, Tool) else None
        if screened != structured:
            result = {**result, "structuredContent": screened}
            if kind is not None:
                known = {name: value for name, value in screened.items() if name in kind.model_fields}
                try:
                    content = [text_content(kind.model_validate(known).readable()), *content[1:]]
                except ValidationError:
                    return build_failure(TextBlocked("This answer contains a blocked word."))
        content = [self._screen_item(item, keeps_place=kind is None and isinstance(tool, Tool)) for item in content]
        texts = [item.get("text") for item in content if item.get("type") == "text"]
        if texts and not result.get("isError") and structured is None and all(text == HIDDEN for text in texts):
            metas = [item.get("_meta", {}) for item in content]
            cursor = next((meta["nextCursor"] for meta in metas if "nextCursor" in meta), None)
            more = "Read another part." if cursor is None else f"Continue with cursor {cursor!r}."
            return build_failure(TextBlocked(f"This text contains a blocked word. {more}"))
        return {**result, "content": content}

    def _screen_item(self, item: Mapping[str, Any], *, keeps_place: bool) -> dict[str, Any]:
        """Return a content item with its texts screened. `keeps_place` is whether it may be a hit of our own."""
        screened = dict(self._screen_fields(item))
        meta = item.get("_meta")
        if keeps_place and meta and "passage" in meta and screened["text"] != item["text"]:
            # The heading, the passage and its source are screened one by one, to keep the place of the passage.
            start, end = meta["passage"]
            mask = self._blocklist.mask
            text, head = item["text"], len("### ")
            lead, passage = f"### {mask(text[head : start - 1])}\n", mask(text[start:end])
            screened["text"] = f"{lead}{passage}{mask(text[end:])}"
            screened["_meta"]["passage"] = [len(lead), len(lead) + len(passage)]
        return screened

    def _screen_fields(self, item: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in item.items():
            if name in _KEPT:
                yield name, value
            elif name in _NESTED and isinstance(value, Mapping):
                yield name, dict(self._screen_fields(value))
            elif name in _NESTED and isinstance(value, list):
                yield name, [dict(self._screen_fields(item)) for item in value if isinstance(item, Mapping)]
            else:
                yield name, self._blocklist.mask_values(value)

    def _screen_resource(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return an item of a resource's contents. JSON is screened text by text."""
        text = item.get("text")
        if not isinstance(text, str):
            return dict(item)
        if item.get("mimeType") == "application/json":
            try:
                values = orjson.loads(text)
            except orjson.JSONDecodeError:
                values = None
            if values is not None:
                return {**item, "text": orjson.dumps(self._blocklist.mask_values(values)).decode()}
        return {**item, "text": self._blocklist.screen(text)}

    def _drop_blocked(self, entries: Sequence[Any]) -> list[Any]:
        return [entry for entry in entries if self._blocklist.mask_values(entry) == entry]
