"""Everything that all servers offer, under the names that it has here, and whose it is.

Put together as a whole whenever something has changed, and never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refdesk.config import DownstreamConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import ExposureRules, ListEntry, Offer
from refdesk.downstream.fleet.list_cache import ListName
from refdesk.downstream.fleet.names import Claim, IsReserved, assign_names, assign_server_ids, clean_name
from refdesk.downstream.fleet.pins import Held
from refdesk.downstream.fleet.templates import Template, parse_template

_NAMED_LISTS: tuple[ListName, ...] = ("tools", "prompts")
_URI_LISTS: tuple[ListName, ...] = ("resources", "templates")


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """A server as far as the catalogue is concerned."""

    connection: Connection
    rules: ExposureRules
    entries: Mapping[ListName, Sequence[ListEntry]]
    held: Mapping[str, Held]
    stale: frozenset[ListName]
    """The lists that are only the last known ones."""


@dataclass(frozen=True, slots=True)
class FleetCatalogue:
    """What is offered: tools and prompts by their names here, resources by URI, templates by URI template.

    Of what several servers have under one URI, the first one's is in the mapping and all are in `alike`: which of them
    it is depends on who asks.
    """

    tools: Mapping[str, Offer] = field(default_factory=dict)
    prompts: Mapping[str, Offer] = field(default_factory=dict)
    resources: Mapping[str, Offer] = field(default_factory=dict)
    templates: Mapping[str, Offer] = field(default_factory=dict)
    duplicates: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """By URI or URI template, in the order of the servers."""
    routes: tuple[tuple[Template, Connection], ...] = ()
    """The templates that stand for something, in the order in which they are tried."""
    native_names: Mapping[tuple[str, str], Offer] = field(default_factory=dict)
    """Tools by their server's id or name and the name that the server gave."""
    reserved: IsReserved = lambda name: False

    def find_tool(self, name: str) -> Offer | None:
        """The tool of that name here, or `server:tool` or `server__tool` in the server's own words, if that is one."""
        offer = self.tools.get(name)
        if offer is not None or self.reserved(name):
            return offer
        split = (self.native_names.get(parts) for separator in (":", "__") for parts in _iter_splits(name, separator))
        matches = {offer.exposed: offer for offer in split if offer is not None}
        return next(iter(matches.values())) if len(matches) == 1 else None

    def iter_owners(self, uri: str) -> Iterator[Connection]:
        """The servers whose resource it is, and then those whose template the URI fits."""
        offer = self.resources.get(uri)
        if offer is not None:
            yield from (each.connection for each in self.duplicates.get(uri, (offer,)))
        yield from (connection for template, connection in self.routes if template.fits(uri))

    def list_changes(self, before: FleetCatalogue) -> list[str]:
        """The lists that are not what they were: `tools`, `prompts`, `resources`; templates are resources as well."""
        changed = {
            "tools": _has_differences(before.tools, self.tools),
            "prompts": _has_differences(before.prompts, self.prompts),
            "resources": _has_differences(before.resources, self.resources)
            or _has_differences(before.templates, self.templates)
            or _get_definitions(before.duplicates) != _get_definitions(self.duplicates),
        }
        return [name for name, is_changed in changed.items() if is_changed]


def assemble(servers: Sequence[ServerSnapshot], settings: DownstreamConfig, reserved: IsReserved) -> FleetCatalogue:
    """The catalogue of these servers, in their order."""
    ids = assign_server_ids((server.connection.name for server in servers), settings.max_name_length)
    tools, prompts = (_expose_named(servers, name, ids, settings, reserved) for name in _NAMED_LISTS)
    by_uri = [_expose_by_uri(servers, name) for name in _URI_LISTS]
    resources, templates = ({uri: offers[0] for uri, offers in found.items()} for found in by_uri)
    duplicates = {uri: tuple(offers) for found in by_uri for uri, offers in found.items() if len(offers) > 1}
    parsed = ((parse_template(text), offer.connection) for text, offers in by_uri[1].items() for offer in offers)
    routes = tuple((template, connection) for template, connection in parsed if template is not None)
    # A server's own name counts before what another is called here.
    native_names = {(ids[offer.connection.name], offer.original): offer for offer in tools.values()}
    native_names |= {(offer.connection.name, offer.original): offer for offer in tools.values()}
    return FleetCatalogue(tools, prompts, resources, templates, duplicates, routes, native_names, reserved)


def _expose_named(
    servers: Sequence[ServerSnapshot],
    list_name: ListName,
    ids: Mapping[str, str],
    settings: DownstreamConfig,
    reserved: IsReserved,
) -> dict[str, Offer]:
    """Tools or prompts by their names here. One that is held keeps its name, so that others' names do not move."""
    claims = [(claim, server, entry) for server in servers for claim, entry in _iter_claims(server, list_name, ids)]
    names = assign_names([claim for claim, _, _ in claims], settings, reserved)
    offers: dict[str, Offer] = {}
    for name, (claim, server, entry) in zip(names, claims, strict=True):
        if list_name == "tools" and claim.original in server.held:
            continue
        definition = entry.definition if claim.original == name else {**entry.definition, "name": name}
        offers[name] = Offer(server.connection, claim.original, definition, name, list_name in server.stale)
    return offers


def _iter_claims(
    server: ServerSnapshot, list_name: ListName, ids: Mapping[str, str]
) -> Iterator[tuple[Claim, ListEntry]]:
    server_name = server.connection.name
    for entry in server.entries[list_name]:
        original = name = entry.original
        if list_name == "tools":
            held = server.held.get(original)
            if not server.rules.allows(original) or (held is not None and held.before is None):
                continue
            name = server.rules.name_of(original)
        yield Claim(server_name, ids[server_name], original, clean_name(name)), entry


def _expose_by_uri(servers: Sequence[ServerSnapshot], list_name: ListName) -> dict[str, list[Offer]]:
    found: dict[str, list[Offer]] = {}
    for server in servers:
        for entry in server.entries[list_name]:
            uri = entry.original
            offer = Offer(server.connection, uri, entry.definition, uri, list_name in server.stale)
            found.setdefault(uri, []).append(offer)
    return found


def _get_definitions(duplicates: Mapping[str, Sequence[Offer]]) -> dict[str, list[Mapping[str, Any]]]:
    return {uri: [offer.definition for offer in offers] for uri, offers in duplicates.items()}


def _has_differences(before: Mapping[str, Offer], now: Mapping[str, Offer]) -> bool:
    """Whether there is another list to be shown; whose it is and how fresh is not in it."""
    return before.keys() != now.keys() or any(before[name].definition != now[name].definition for name in now)


def _iter_splits(name: str, separator: str) -> Iterator[tuple[str, str]]:
    """Every way in which the name can be a server's and a tool's."""
    place = name.find(separator)
    while place != -1:
        yield name[:place], name[place + len(separator) :]
        place = name.find(separator, place + 1)
