"""Everything that all servers offer, under the names that it has here, and whose it is.

Put together as a whole whenever something has changed, and never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refdesk.config import DownstreamConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import Entry, Offer, Rules
from refdesk.downstream.fleet.list_cache import ListName
from refdesk.downstream.fleet.names import Claim, Reserved, cleaned, expose, server_ids
from refdesk.downstream.fleet.pins import Held
from refdesk.downstream.fleet.templates import Template, parse_template

_NAMED: tuple[ListName, ...] = ("tools", "prompts")
_LOCATED: tuple[ListName, ...] = ("resources", "templates")


@dataclass(frozen=True, slots=True)
class Source:
    """A server as far as the catalogue is concerned."""

    connection: Connection
    rules: Rules
    entries: Mapping[ListName, Sequence[Entry]]
    held: Mapping[str, Held]
    stale: frozenset[ListName]
    """The lists that are only the last known ones."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What is offered: tools and prompts by their names here, resources by URI, templates by URI template.

    Of what several servers have under one URI, the first one's is in the mapping and all are in `alike`: which of them
    it is depends on who asks.
    """

    tools: Mapping[str, Offer] = field(default_factory=dict)
    prompts: Mapping[str, Offer] = field(default_factory=dict)
    resources: Mapping[str, Offer] = field(default_factory=dict)
    templates: Mapping[str, Offer] = field(default_factory=dict)
    alike: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """By URI or URI template, in the order of the servers."""
    routes: tuple[tuple[Template, Connection], ...] = ()
    """The templates that stand for something, in the order in which they are tried."""
    own_words: Mapping[tuple[str, str], Offer] = field(default_factory=dict)
    """Tools by their server's id or name and the name that the server gave."""
    reserved: Reserved = lambda name: False

    def find_tool(self, name: str) -> Offer | None:
        """The tool of that name here, or `server:tool` or `server__tool` in the server's own words, if that is one."""
        offer = self.tools.get(name)
        if offer is not None or self.reserved(name):
            return offer
        split = (self.own_words.get(words) for separator in (":", "__") for words in _splits(name, separator))
        meant = {offer.exposed: offer for offer in split if offer is not None}
        return next(iter(meant.values())) if len(meant) == 1 else None

    def owners_of(self, uri: str) -> Iterator[Connection]:
        """The servers whose resource it is, and then those whose template the URI fits."""
        offer = self.resources.get(uri)
        if offer is not None:
            yield from (each.connection for each in self.alike.get(uri, (offer,)))
        yield from (connection for template, connection in self.routes if template.fits(uri))

    def changed_since(self, before: Catalogue) -> list[str]:
        """The lists that are not what they were: `tools`, `prompts`, `resources`; templates are resources as well."""
        changed = {
            "tools": _differ(before.tools, self.tools),
            "prompts": _differ(before.prompts, self.prompts),
            "resources": _differ(before.resources, self.resources)
            or _differ(before.templates, self.templates)
            or _definitions(before.alike) != _definitions(self.alike),
        }
        return [name for name, is_changed in changed.items() if is_changed]


def assemble(sources: Sequence[Source], settings: DownstreamConfig, reserved: Reserved) -> Catalogue:
    """The catalogue of these servers, in their order."""
    ids = server_ids((source.connection.name for source in sources), settings.max_name_length)
    tools, prompts = (_named(sources, name, ids, settings, reserved) for name in _NAMED)
    located = [_located(sources, name) for name in _LOCATED]
    resources, templates = ({uri: offers[0] for uri, offers in found.items()} for found in located)
    alike = {uri: tuple(offers) for found in located for uri, offers in found.items() if len(offers) > 1}
    parsed = ((parse_template(text), offer.connection) for text, offers in located[1].items() for offer in offers)
    routes = tuple((template, connection) for template, connection in parsed if template is not None)
    # A server's own name counts before what another is called here.
    own_words = {(ids[offer.connection.name], offer.original): offer for offer in tools.values()}
    own_words |= {(offer.connection.name, offer.original): offer for offer in tools.values()}
    return Catalogue(tools, prompts, resources, templates, alike, routes, own_words, reserved)


def _named(
    sources: Sequence[Source],
    list_name: ListName,
    ids: Mapping[str, str],
    settings: DownstreamConfig,
    reserved: Reserved,
) -> dict[str, Offer]:
    """Tools or prompts by their names here. One that is held keeps its name, so that others' names do not move."""
    claims = [(claim, source, entry) for source in sources for claim, entry in _claims(source, list_name, ids)]
    names = expose([claim for claim, _, _ in claims], settings, reserved)
    offers: dict[str, Offer] = {}
    for name, (claim, source, entry) in zip(names, claims, strict=True):
        if list_name == "tools" and claim.original in source.held:
            continue
        definition = entry.definition if claim.original == name else {**entry.definition, "name": name}
        offers[name] = Offer(source.connection, claim.original, definition, name, list_name in source.stale)
    return offers


def _claims(source: Source, list_name: ListName, ids: Mapping[str, str]) -> Iterator[tuple[Claim, Entry]]:
    server = source.connection.name
    for entry in source.entries[list_name]:
        original = name = entry.original
        if list_name == "tools":
            held = source.held.get(original)
            if not source.rules.allows(original) or (held is not None and held.before is None):
                continue
            name = source.rules.name_of(original)
        yield Claim(server, ids[server], original, cleaned(name)), entry


def _located(sources: Sequence[Source], list_name: ListName) -> dict[str, list[Offer]]:
    found: dict[str, list[Offer]] = {}
    for source in sources:
        for entry in source.entries[list_name]:
            uri = entry.original
            offer = Offer(source.connection, uri, entry.definition, uri, list_name in source.stale)
            found.setdefault(uri, []).append(offer)
    return found


def _definitions(alike: Mapping[str, Sequence[Offer]]) -> dict[str, list[Mapping[str, Any]]]:
    return {uri: [offer.definition for offer in offers] for uri, offers in alike.items()}


def _differ(before: Mapping[str, Offer], now: Mapping[str, Offer]) -> bool:
    """Whether there is another list to be shown; whose it is and how fresh is not in it."""
    return before.keys() != now.keys() or any(before[name].definition != now[name].definition for name in now)


def _splits(name: str, separator: str) -> Iterator[tuple[str, str]]:
    """Every way in which the name can be a server's and a tool's."""
    place = name.find(separator)
    while place != -1:
        yield name[:place], name[place + len(separator) :]
        place = name.find(separator, place + 1)
