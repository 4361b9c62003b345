"""Tools, prompts and resources of downstream servers as registry entries, and the results of their calls.

Calls and results are forwarded unchanged. Only what routing needs is validated. A server's annotations are claims, and
treated as such. Long results of tools are truncated, and their whole text is stored as a paged resource.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import orjson

from refdesk.calls import SILENT, Annotations, Call, Caller, RegistryEntry, ToolEntry, text_content
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, measure_tokens
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import ExposedItem
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.pins import HeldTool
from refdesk.downstream.jsonrpc import Callbacks
from refdesk.errors import InvalidArguments, Problem, ServerTalksNonsense, UnknownPrompt, UnknownTool
from refdesk.tools.input_requests import (
    MARGIN_SECONDS,
    NO_CALLBACKS,
    ClientCallbacks,
    SuspendedCalls,
    answer_input_requests,
    build_capabilities,
)
from refdesk.tools.prompts import Completion, PromptEntry
from refdesk.tools.registry import DOWNSTREAM_TOOLSET, Resources

COMPLETIONS_DECLARED = "2025-03-26"
"""First revision in which servers declare that they support completion."""

STALE_META = "refdesk/stale"
"""Metadata key of definitions whose server is currently unavailable."""

MAX_LISTED_HELD = 50
"""Tools in the metadata of `tools/list`. The console and `refdesk servers approve` have all of them."""

LISTING_GRACE_SECONDS = 5.0
"""How long a running server may take to list its tools before lists without it are cacheable."""

NO_COMPLETION: Mapping[str, Any] = {"completion": {"values": [], "total": 0, "hasMore": False}}

Reach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may use something: server, name, and the server's tenants."""

RESULTS_PREFIX = "refdesk://results/"

CUT_META = "refdesk/cut"
"""Metadata key that describes the truncation, as the last text item does for models."""

PAGE_CHARACTERS = 40_000
"""Size of a page of a stored result: some ten thousand tokens of English, which every client accepts."""

RETENTION_SECONDS = 600.0
MAX_STORED_BYTES = 67_108_864
MAX_STORED_PER_CALLER = 20
"""Limits of stored results: age, total size and number per caller; the oldest are evicted first."""

SLICE_CHARACTERS = 2000
"""Characters counted at a time, so that text far beyond the budget is never tokenized."""

Result = dict[str, Any]


class Forwarder:
    """Forwards calls; holds suspended ones."""

    def __init__(self) -> None:
        self.suspended = SuspendedCalls()

    async def __call__(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        """Return the server's result; takes ownership of `params`.

        Only the parts of the result that Refdesk reads itself are validated.
        """
        if "_meta" in params and not isinstance(params["_meta"], dict):
            raise InvalidArguments([Problem("_meta", "must be an object")])
        result = await self._forward(call, server, method, params)
        if not _is_well_formed(result):
            raise ServerTalksNonsense(f"The server {server.name!r} returned a malformed result")
        return result

    async def _forward(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        client = call.client
        if client.uses_input_required:
            return await self.suspended.forward(call, server, method, params)
        callbacks: Callbacks = NO_CALLBACKS
        if client is not SILENT:
            callbacks = ClientCallbacks(client, server.name)
        elif isinstance(meta := params.get("_meta"), Mapping) and "progressToken" in meta:
            # Nobody receives progress, and the token may collide with another.
            params["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}
        profile = server.server_profile
        capabilities = build_capabilities(client) if profile is not None and profile.is_modern else None
        result = await server.request(
            method, params, callbacks=callbacks, token=call.credential, capabilities=capabilities
        )
        return await answer_input_requests(call, server, method, params, result) if "resultType" in result else result


def _is_well_formed(result: Result) -> bool:
    """Return whether content is a list of objects, text is a string and `_meta` an object, if present."""
    content, meta = result.get("content", ()), result.get("_meta")
    if not isinstance(content, (list, tuple)) or not (meta is None or isinstance(meta, dict)):
        return False
    return all(
        isinstance(item, dict)
        and isinstance(item.get("text", ""), str)
        and (item.get("type") != "text" or "text" in item)
        for item in content
    )


class _ProxiedEntry(RegistryEntry):
    """Base of proxied tools and prompts."""

    toolset = DOWNSTREAM_TOOLSET

    def __init__(self, item: ExposedItem, downstream: Downstream) -> None:
        self.name = item.exposed
        self.server = item.connection
        self.original = item.original
        self._downstream = downstream
        self._listing: dict[str, Any] = {**item.definition, "name": item.exposed}
        if item.is_stale:
            meta = item.definition.get("_meta")
            self._listing["_meta"] = {**(meta if isinstance(meta, dict) else {}), STALE_META: True}

    def seconds_for(self, call: Call) -> float:
        """Return the server's current call timeout plus a margin."""
        return self.server.settings.call_timeout_seconds + MARGIN_SECONDS

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether the caller may use it."""
        return self._downstream.reach(caller, self.server.name, self.original, self.server.settings.tenants)


class ProxiedTool(_ProxiedEntry, ToolEntry):
    """A tool of a downstream server."""

    def __init__(self, item: ExposedItem, downstream: Downstream) -> None:
        super().__init__(item, downstream)
        self.is_listed = downstream.lists_tools
        self.definition = definition = item.definition
        hints = definition.get("annotations") or {}
        self.title: str = definition.get("title") or str(hints.get("title") or self.name)
        self.description: str = definition.get("description") or ""
        # Missing hints mean the worst case, as the protocol specifies.
        self.annotations = Annotations(
            read_only=hints.get("readOnlyHint") is True,
            destructive=hints.get("destructiveHint") is not False,
            idempotent=hints.get("idempotentHint") is True,
            open_world=hints.get("openWorldHint") is not False,
        )

    @property
    def input_schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = self.definition["inputSchema"]
        return schema

    def listing(self, call: Call) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def __call__(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Return the server's result, truncated to the budget."""
        downstream = self._downstream
        if self.name not in downstream.tools:
            # Removed or held a moment ago.
            raise UnknownTool(f"{self.name!r} no longer exists; see the list")
        params = {**call.params, "name": self.original}
        result = await downstream.forward(call, self.server, "tools/call", params)
        for item in result.get("content", ()):
            if item.get("type") == "resource_link" and isinstance(uri := item.get("uri"), str):
                downstream.fleet.add_link(uri, self.server)
        own_bound = self.server.settings.max_result_tokens
        bound = downstream.max_tokens if own_bound is None else own_bound
        if not bound:
            return result
        has_schema = self.definition.get("outputSchema") is not None
        return downstream.results.fit(result, bound, call.caller, has_schema=has_schema)


class ProxiedPrompt(_ProxiedEntry, PromptEntry):
    """A prompt of a downstream server."""

    def listing(self) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def get(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Return the server's messages."""
        if self.name not in self._downstream.prompts:
            raise UnknownPrompt(f"{self.name!r} no longer exists; see the list")
        params = {**call.params, "name": self.original}
        return await self._downstream.forward(call, self.server, "prompts/get", params)

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return the server's completion."""
        params = {**call.params, "ref": {**call.params["ref"], "name": self.original}}
        return await self._downstream.complete(call, self.server, params)


@dataclass(eq=False, repr=False)
class Downstream:
    """Registry source of the fleet: its tools and prompts as registry entries, and its resources."""

    fleet: Fleet
    reach: Reach
    """Decides what a caller may use."""
    own_schemes: Collection[str]
    """Refdesk's URI schemes, which are never forwarded."""
    max_tokens: int
    """Limit of the results of tools, unless their server's settings have one."""
    results: LongResults
    lists_tools: bool
    forward: Forwarder = field(default_factory=Forwarder, init=False)
    _revision: int = field(default=-1, init=False)
    _tools: dict[str, ProxiedTool] = field(default_factory=dict, init=False)
    _prompts: dict[str, ProxiedPrompt] = field(default_factory=dict, init=False)
    _listing_deadlines: WeakKeyDictionary[Connection, float] = field(default_factory=WeakKeyDictionary, init=False)

    @property
    def tools(self) -> Mapping[str, ProxiedTool]:
        """The fleet's tools, wrapped once per revision of its catalogue."""
        if self._revision != self.fleet.revision:
            self._wrap_items()
        return self._tools

    @property
    def prompts(self) -> Mapping[str, ProxiedPrompt]:
        """The fleet's prompts, wrapped once per revision of its catalogue."""
        if self._revision != self.fleet.revision:
            self._wrap_items()
        return self._prompts

    def _wrap_items(self) -> None:
        self._revision, catalogue = self.fleet.revision, self.fleet.catalogue
        self._tools = {name: ProxiedTool(item, self) for name, item in catalogue.tools.items()}
        self._prompts = {name: ProxiedPrompt(item, self) for name, item in catalogue.prompts.items()}

    def find_tool(self, name: str) -> ProxiedTool | None:
        """Return a tool by its exposed name, or by `server:tool` or `server__tool` with the server's own name of it."""
        tool = self.tools.get(name)
        item = self.fleet.catalogue.find_tool(name) if tool is None else None
        return self.tools.get(item.exposed) if item is not None else tool

    def find_held(self, name: str, caller: Caller) -> HeldTool | None:
        """Return a tool that waits for approval, by any of its names, if the caller may use it then."""
        item = self.fleet.catalogue.find_held(name)
        is_open = item is not None and self.is_reachable(caller, item.connection, item.original)
        return self.fleet.held_tools.get(f"{item.connection.name}:{item.original}") if item and is_open else None

    def list_held(self, caller: Caller) -> list[dict[str, str]]:
        """Return the tools that wait for approval, and how to approve them, for the metadata of `tools/list`."""
        found = ((name, self.find_held(name, caller)) for name in self.fleet.catalogue.held)
        entries = ({"name": name, "reason": held.reason, "approve": held.approval} for name, held in found if held)
        return list(islice(entries, MAX_LISTED_HELD))

    def select_alike(self, name: str, tools: Iterable[ToolEntry]) -> list[str]:
        """Return the names of tools that `name` may be a misspelling of: if it names a server, only tools of that."""
        separator = self.fleet.separator
        prefixes = {name.partition(sign)[0] for sign in (separator, "__", ":") if sign in name}
        return [
            tool.name
            for tool in tools
            if not prefixes
            or tool.name.partition(separator)[0] in prefixes
            or (isinstance(tool, ProxiedTool) and tool.server.name in prefixes)
        ]

    def find_prompt(self, name: str) -> ProxiedPrompt | None:
        """Return a prompt by its exposed name or as `server:prompt`, or the first one that its server calls this."""
        prompts, item = self.prompts, self.fleet.catalogue.find_prompt(name)
        if item is not None:
            return prompts.get(item.exposed)
        return next((prompt for prompt in prompts.values() if prompt.original == name), None)

    def list_open(self, items: Mapping[str, ExposedItem], caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the resources or templates that a caller may use."""
        found = (self._find_open(item, caller) for uri, item in items.items() if not self.is_own(uri))
        return (item.definition for item in found if item is not None)

    async def read_resource(self, uri: str, call: Call) -> dict[str, Any] | None:
        """Return the result of the server that offers the resource, or None if none does."""
        if self.is_own(uri):
            return None

        def is_open(server: Connection) -> bool:
            return self.is_reachable(call.caller, server, uri)

        server = self.fleet.find_resource_owner(uri, is_open)
        if server is None and await self.fleet.scan("resources", "templates"):
            server = self.fleet.find_resource_owner(uri, is_open)
        if server is None:
            return None
        result = await self.forward(call, server, "resources/read", dict(call.params))
        # Only the server knows how long the content stays as it is.
        return {"ttlMs": 0, **result} if call.client.uses_input_required else result

    async def complete_template(self, template: str, call: Call) -> dict[str, Any] | None:
        """Return the completion of the server that has the template."""
        item = self.fleet.catalogue.templates.get(template)
        item = None if item is None or self.is_own(template) else self._find_open(item, call.caller)
        return None if item is None else await self.complete(call, item.connection, dict(call.params))

    async def complete(self, call: Call, server: Connection, params: dict[str, Any]) -> dict[str, Any]:
        """Request a completion, unless the server declares that it has none."""
        profile = server.server_profile
        if profile is not None and profile.version >= COMPLETIONS_DECLARED and not profile.has("completions"):
            return dict(NO_COMPLETION)
        return await self.forward(call, server, "completion/complete", params)

    def resource_seconds(self, uri: str) -> float | None:
        """Return the owning server's call timeout plus a margin."""
        server = self.fleet.find_resource_owner(uri) if not self.is_own(uri) else None
        return server.settings.call_timeout_seconds + MARGIN_SECONDS if server is not None else None

    def has_complete_lists(self) -> bool:
        """Return whether all running servers have listed their tools, or had the time: some have none."""
        servers = self.fleet.servers.values()
        if not servers:
            return True
        now, listed = time.monotonic(), {item.connection for item in self.fleet.catalogue.tools.values()}
        for server in servers:
            if server.status.state == "Running" and server not in listed:
                is_settled = now >= self._listing_deadlines.setdefault(server, now + LISTING_GRACE_SECONDS)
            else:
                is_settled = server.status.state != "Starting"
            if not is_settled:
                return False
        return True

    def is_own(self, uri: str) -> bool:
        """Return whether a URI has one of Refdesk's schemes."""
        return uri.partition(":")[0].lower() in self.own_schemes

    def is_reachable(self, caller: Caller, server: Connection, uri: str) -> bool:
        """Return whether a caller may use a server's resource."""
        return self.reach(caller, server.name, uri, server.settings.tenants)

    def _find_open(self, item: ExposedItem, caller: Caller) -> ExposedItem | None:
        """Return the first item of a URI that the caller may use."""
        uri = item.original
        items = self.fleet.catalogue.duplicates.get(uri, (item,))
        return next((candidate for candidate in items if self.is_reachable(caller, candidate.connection, uri)), None)


# Long results


@dataclass(frozen=True, slots=True)
class _StoredResult:
    owner: tuple[str, str]
    text: str
    expires_at: float


class LongResults(Resources):
    """Truncates results to a budget, and serves the whole texts as resources.

    They aren't listed: ids are secret, so stored results are only reachable by their link.
    """

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

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        """Return a page of a stored text to its owner."""
        if not uri.startswith(RESULTS_PREFIX):
            return None
        id, _, query = uri.removeprefix(RESULTS_PREFIX).partition("?")
        stored = self._stored.get(id)
        if stored is None or stored.owner != _get_owner(call.caller) or stored.expires_at <= self._now():
            return None
        pages = _count_pages(stored.text)
        page = _parse_page(query, pages)
        start = (page - 1) * PAGE_CHARACTERS
        text = stored.text[start : start + PAGE_CHARACTERS]
        meta: dict[str, Any] = {"refdesk/page": page, "refdesk/pages": pages}
        if page < pages:
            meta["refdesk/next"] = f"{RESULTS_PREFIX}{id}?page={page + 1}"
        return [{"uri": uri, "mimeType": "text/plain", "text": text, "_meta": meta}]

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
        return RESULTS_PREFIX + id

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
