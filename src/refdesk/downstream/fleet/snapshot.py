"""Immutable catalogue of everything that the servers expose. Rebuilt as a whole on every change.

Unlisted resources are looked up by the URI templates of their servers (RFC 6570). Server input is never compiled into a
regular expression. All reachable positions are tracked at once, so that the time grows only with the length of the URI
and the number of expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refdesk.config.models import DownstreamConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import ExposedItem, ListEntry
from refdesk.downstream.fleet.member import Member
from refdesk.downstream.fleet.names import Claim, IsReserved, assign_names, assign_server_ids, clean_name
from refdesk.downstream.session import ListName

MAX_URI_LENGTH = 1000
"""Longer URIs match no template."""

MAX_EXPRESSIONS = 6
"""Expressions per template: more than real ones have. Templates with more match nothing. A hundred templates of this
size take an eighth of a second for the longest URI, which blocks the event loop."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

_TERMINATORS = {"": "/?#", "#": "", ".": "/?#", "/": "?#", ";": "/?#", "?": "#", "&": "#"}
"""Characters that end an expression, by operator. Looser than the RFC, like real servers."""


@dataclass(frozen=True, slots=True)
class FleetCatalogue:
    """Exposed items: tools and prompts by name, resources by URI, templates by URI template.

    If several servers have the same URI, the mapping has the first server's item and `duplicates` has all of them: the
    caller's permissions decide.
    """

    tools: Mapping[str, ExposedItem] = field(default_factory=dict)
    prompts: Mapping[str, ExposedItem] = field(default_factory=dict)
    resources: Mapping[str, ExposedItem] = field(default_factory=dict)
    templates: Mapping[str, ExposedItem] = field(default_factory=dict)
    duplicates: Mapping[str, tuple[ExposedItem, ...]] = field(default_factory=dict)
    """By URI or URI template, in the order of the servers."""
    routes: tuple[tuple[Template, Connection], ...] = ()
    """Parsed templates in matching order."""
    native_tools: Mapping[tuple[str, str], ExposedItem] = field(default_factory=dict)
    native_prompts: Mapping[tuple[str, str], ExposedItem] = field(default_factory=dict)
    """Tools and prompts by server id or name, and the server's own name of them."""
    held: Mapping[str, ExposedItem] = field(default_factory=dict)
    native_held: Mapping[tuple[str, str], ExposedItem] = field(default_factory=dict)
    """Tools that wait for approval, by the names that they have once approved."""
    reserved: IsReserved = lambda name: False

    def find_tool(self, name: str) -> ExposedItem | None:
        """Return a tool by its exposed name, or by `server:tool` or `server__tool` if that is unambiguous."""
        return self._find(name, self.tools, self.native_tools)

    def find_held(self, name: str) -> ExposedItem | None:
        """Return a tool that waits for approval, by the same names as exposed ones."""
        return self._find(name, self.held, self.native_held)

    def find_prompt(self, name: str) -> ExposedItem | None:
        """Return a prompt by its exposed name, or by `server:prompt` or `server__prompt` if that is unambiguous."""
        return self._find(name, self.prompts, self.native_prompts)

    def _find(
        self, name: str, exposed: Mapping[str, ExposedItem], native: Mapping[tuple[str, str], ExposedItem]
    ) -> ExposedItem | None:
        offer = exposed.get(name)
        if offer is not None or self.reserved(name):
            return offer
        split = (native.get(parts) for separator in (":", "__") for parts in _iter_splits(name, separator))
        matches = {offer.exposed: offer for offer in split if offer is not None}
        return next(iter(matches.values())) if len(matches) == 1 else None

    def iter_owners(self, uri: str) -> Iterator[Connection]:
        """Yield the servers that list the resource, then those with a matching template."""
        offer = self.resources.get(uri)
        if offer is not None:
            yield from (each.connection for each in self.duplicates.get(uri, (offer,)))
        yield from (connection for template, connection in self.routes if template.fits(uri))

    def list_changes(self, before: FleetCatalogue) -> list[str]:
        """Return the changed lists: `tools`, `prompts`, `resources`. Templates count as resources."""
        now, then = self._list_definitions(), before._list_definitions()
        return [name for name in now if now[name] != then[name]]

    def _list_definitions(self) -> dict[str, Any]:
        """Return what each list displays. Owner and staleness aren't displayed."""
        tools, prompts, resources, templates = (
            {name: offer.definition for name, offer in offers.items()}
            for offers in (self.tools, self.prompts, self.resources, self.templates)
        )
        duplicates = {uri: [offer.definition for offer in offers] for uri, offers in self.duplicates.items()}
        return {"tools": tools, "prompts": prompts, "resources": (resources, templates, duplicates)}


def assemble(servers: Sequence[Member], settings: DownstreamConfig, reserved: IsReserved) -> FleetCatalogue:
    """Build the catalogue of these servers, in their order."""
    ids = assign_server_ids((server.connection.name for server in servers), settings.max_name_length)
    tools, held = _expose_named(servers, "tools", ids, settings, reserved)
    prompts, _ = _expose_named(servers, "prompts", ids, settings, reserved)
    by_uri = _expose_by_uri(servers, "resources"), _expose_by_uri(servers, "templates")
    resources, templates = ({uri: offers[0] for uri, offers in found.items()} for found in by_uri)
    duplicates = {uri: tuple(offers) for found in by_uri for uri, offers in found.items() if len(offers) > 1}
    parsed = ((parse_template(text), offer.connection) for text, offers in by_uri[1].items() for offer in offers)
    routes = tuple((template, connection) for template, connection in parsed if template is not None)
    native_tools, native_prompts, native_held = (
        _map_native_names(offers.values(), ids) for offers in (tools, prompts, held)
    )
    return FleetCatalogue(
        tools,
        prompts,
        resources,
        templates,
        duplicates,
        routes,
        native_tools,
        native_prompts,
        held,
        native_held,
        reserved,
    )


def _map_native_names(offers: Iterable[ExposedItem], ids: Mapping[str, str]) -> dict[tuple[str, str], ExposedItem]:
    """Map server and own name to the items. A server's name takes precedence over another server's id."""
    by_id = {(ids[offer.connection.name], offer.original): offer for offer in offers}
    return by_id | {(offer.connection.name, offer.original): offer for offer in by_id.values()}


def _expose_named(
    servers: Sequence[Member],
    list_name: ListName,
    ids: Mapping[str, str],
    settings: DownstreamConfig,
    reserved: IsReserved,
) -> tuple[dict[str, ExposedItem], dict[str, ExposedItem]]:
    """Return tools or prompts by exposed name, and those held. These keep their names, so that others don't change."""
    claims: list[tuple[Claim, Member, ListEntry]] = []
    held_offers: dict[str, ExposedItem] = {}
    for server in servers:
        server_name = server.connection.name
        for entry in server.filtered[list_name].entries:
            original = name = entry.original
            if list_name == "tools":
                held = server.held.get(original)
                if not server.rules.allows(original):
                    continue
                name = server.rules.name_of(original)
                if held is not None and held.before is None:
                    wanted = f"{ids[server_name]}{settings.separator}{clean_name(name)}"
                    held_offers[wanted] = ExposedItem(server.connection, original, entry.definition, wanted, True)
                    continue
            claims.append((Claim(server_name, ids[server_name], original, clean_name(name)), server, entry))
    names = assign_names([claim for claim, _, _ in claims], settings, reserved)
    offers: dict[str, ExposedItem] = {}
    for name, (claim, server, entry) in zip(names, claims, strict=True):
        definition = entry.definition if claim.original == name else {**entry.definition, "name": name}
        is_held = list_name == "tools" and claim.original in server.held
        found = held_offers if is_held else offers
        found[name] = ExposedItem(server.connection, claim.original, definition, name, server.is_stale(list_name))
    return offers, held_offers


def _expose_by_uri(servers: Sequence[Member], list_name: ListName) -> dict[str, list[ExposedItem]]:
    found: dict[str, list[ExposedItem]] = {}
    for server in servers:
        for entry in server.filtered[list_name].entries:
            uri = entry.original
            offer = ExposedItem(server.connection, uri, entry.definition, uri, server.is_stale(list_name))
            found.setdefault(uri, []).append(offer)
    return found


def _iter_splits(name: str, separator: str) -> Iterator[tuple[str, str]]:
    """Yield every way to split a name into server and tool."""
    place = name.find(separator)
    while place != -1:
        yield name[:place], name[place + len(separator) :]
        place = name.find(separator, place + 1)


# URI templates


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: the literal prefix, then pairs of operator and following literal."""

    head: str
    rest: tuple[tuple[str, str], ...]

    def fits(self, uri: str) -> bool:
        """Whether the URI can be an expansion of the template."""
        if len(uri) > MAX_URI_LENGTH or not uri.startswith(self.head):
            return False
        positions = {len(self.head)}
        for operator, text in self.rest:
            positions = _advance(uri, positions, operator)
            positions = {position + len(text) for position in positions if uri.startswith(text, position)}
            if not positions:
                return False
        return len(uri) in positions


def parse_template(text: str) -> Template | None:
    """Parse a template. Return None if it has no scheme or too many expressions."""
    head, *rest = _EXPRESSION.split(text, maxsplit=MAX_EXPRESSIONS + 1)
    if ":" not in head or len(rest) > 2 * MAX_EXPRESSIONS:
        # Without a scheme it would match the URIs of other servers.
        return None
    return Template(head, tuple(zip(rest[::2], rest[1::2], strict=True)))


def _advance(uri: str, positions: set[int], operator: str) -> set[int]:
    """Return the positions reachable after an expression, given the positions before it.

    An expression whose operator adds a prefix may be empty.
    """
    if operator == "+":
        return set(range(min(positions) + 1, len(uri) + 1))
    prefix, terminators = operator, _TERMINATORS[operator]
    reached = set(positions) if prefix else set()
    is_inside = False
    for position in range(min(positions), len(uri)):
        character = uri[position]
        if prefix:
            is_inside = (position in positions and character == prefix) or (is_inside and character not in terminators)
        else:
            is_inside = (is_inside or position in positions) and character not in terminators
        if is_inside:
            reached.add(position + 1)
    return reached
