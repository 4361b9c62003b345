"""What a caller may do: the one place where roles and the toolsets of a key mean something.

Roles add up. A caller without any may use every tool, as one that no operator has limited. With roles it may do what
they open together, and a role that is not known here opens nothing, so that a misspelt one fails at once and closed:

    reader      tools that only read
    writer      every tool
    service     every tool, and to act for other users and tenants (`inbound.internal`)
    admin       every tool, and the administration of the desk

Toolsets narrow all of that: tools, prompts, resources and their completions of other toolsets are not there for the
caller, in lists as in calls. So do the tenants of a server behind the desk, and the servers that a key opens. What such
a server says of its tools is a claim: one that does not say that it only reads is not for readers.

What the web console asks for has rules of the same kind (`CONSOLE_RULES`), so that it opens nothing that tools do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from refdesk.calls import (
    ADMIN,
    CONSOLE,
    READER,
    ROLES,
    SERVICE,
    UPLOAD_METHOD,
    WINDOW_METHOD,
    WRITER,
    Answer,
    Call,
    Caller,
    Handler,
)
from refdesk.errors import Forbidden, UnknownResource
from refdesk.validation import shortened

_KNOWN = frozenset(ROLES)
_EVERY_TOOL = frozenset({WRITER, SERVICE, ADMIN})

_METHOD_TOOLSETS = {WINDOW_METHOD: ("reader",), UPLOAD_METHOD: ("convert", "r2r")}
"""Of what is not one of MCP's methods: the toolsets that have a use for it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What it takes to do something in the console."""

    toolsets: tuple[str, ...] = ()
    """One of these has to be open; none means that it is for everybody who is let in."""
    writes: bool = False
    administers: bool = False


_READS, _WRITES, _ADMINISTERS = Rule(("docs", "r2r")), Rule(("r2r",), writes=True), Rule(administers=True)

CONSOLE_RULES: Mapping[str, Rule] = {
    f"{CONSOLE}{action}": rule
    for rule, actions in {
        Rule(): "me metrics events",
        _READS: "collections documents document read",
        _WRITES: "create_collection delete_collection delete_documents retry",
        Rule(("downstream",)): "servers",
        _ADMINISTERS: "server_log set_server approve keys make_key revoke_key tenants",
    }.items()
    for action in actions.split()
}
"""Every method of the console; there is none without a rule."""

_RESOURCE_LISTS = {
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
"""The list in an answer, and what names an entry of it."""


@dataclass(frozen=True, slots=True)
class TokenCaller(Caller):
    """A caller with an access token, who can come back with one that has more scopes."""

    scopes: frozenset[str] = frozenset()


class Hints(Protocol):
    """What a tool says of itself."""

    @property
    def read_only(self) -> bool: ...


class Offered(Protocol):
    """A tool, as far as permissions look at it."""

    @property
    def annotations(self) -> Hints: ...

    def is_open_to(self, caller: Caller) -> bool:
        """Whether it is there at all for this caller."""
        ...


T = TypeVar("T", bound=Offered)


def may_administer(caller: Caller) -> bool:
    """Whether the administration is open to a caller: the owner of this process, and the role for it."""
    return caller.local or ADMIN in caller.roles


def may_only_read(caller: Caller) -> bool:
    """Whether a caller with roles has none that opens more than reading."""
    return bool(caller.roles) and _EVERY_TOOL.isdisjoint(caller.roles)


def may_reach(caller: Caller, server: str, name: str, tenants: Collection[str]) -> bool:
    """Whether something of a server behind the desk is there for a caller: a tool or prompt by the name that the server
    itself gives it, a resource by its URI. `tenants` are those that the server is for; none named means all."""
    if tenants and caller.tenant not in tenants:
        return False
    if caller.servers is None:
        return True
    return any(_opens(pattern, server, name) for pattern in caller.servers)


def _opens(pattern: str, server: str, name: str) -> bool:
    """Whether a key's pattern opens something of a server. One with a `__` never names a server alone: `docs__*` is
    whatever `docs` has, and nothing of a server `docs__internal`."""
    place = pattern.find("__")
    if place == -1:
        return fnmatchcase(server, pattern)
    while place != -1:
        if fnmatchcase(server, pattern[:place]) and fnmatchcase(name, pattern[place + 2 :]):
            return True
        place = pattern.find("__", place + 1)
    return False


def may_reach_some(caller: Caller, server: str, tenants: Collection[str]) -> bool:
    """Whether anything of a server behind the desk can be there for a caller."""
    if tenants and caller.tenant not in tenants:
        return False
    return caller.servers is None or any(_names(pattern, server) for pattern in caller.servers)


def _names(pattern: str, server: str) -> bool:
    """Whether a key's pattern opens a server, or something of it."""
    if "__" not in pattern:
        return fnmatchcase(server, pattern)
    places = (place for place in range(len(pattern)) if pattern.startswith("__", place))
    return any(fnmatchcase(server, pattern[:place]) for place in places)


class Permissions:
    """The policy, and `narrowed` for whoever lists tools by another way."""

    def __init__(
        self,
        switched_on: Iterable[str],
        tools: Mapping[str, Offered],
        resource_toolsets: Mapping[str, str],
        scope_roles: Mapping[str, Sequence[str]],
        trusts_everybody: Callable[[], bool] = lambda: False,
    ) -> None:
        """`resource_toolsets` says which toolset the resources of a URI scheme belong to, `scope_roles` which roles the
        scopes of an access token give, and `trusts_everybody` whether all callers administer at this moment."""
        self._switched_on = frozenset(switched_on)
        self._trusts_everybody = trusts_everybody
        self._tools = tools
        self._resource_toolsets = resource_toolsets
        self._writing_scopes = [scope for scope, roles in scope_roles.items() if not _EVERY_TOOL.isdisjoint(roles)]

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        caller = call.caller
        rule = CONSOLE_RULES.get(call.method)
        if rule is None and not caller.roles and caller.toolsets is None:
            return await proceed(call)
        if caller.roles:
            self._check_roles(call)
        if rule is not None and (reason := self._why_not(caller, rule)):
            raise Forbidden(reason)
        if caller.toolsets is not None:
            call = self._within_toolsets(call, caller.toolsets)
        return self._shown(call, await proceed(call))

    def narrowed(self, tools: Callable[[Call], list[T]]) -> Callable[[Call], list[T]]:
        """The same tools, less those that the caller of the call may not use."""

        def narrowed(call: Call) -> list[T]:
            only_read = may_only_read(call.caller)
            return [tool for tool in tools(call) if not only_read or tool.annotations.read_only]

        return narrowed

    def is_beyond(self, caller: Caller, tool: str) -> bool:
        """Whether a tool is there, but not for the roles of this caller."""
        offered = self._tools.get(tool)
        if offered is None or not may_only_read(caller) or offered.annotations.read_only:
            return False
        return offered.is_open_to(caller)

    def scopes_for(self, caller: Caller, tool: str) -> tuple[str, ...]:
        """The scopes that a new access token of this caller needs to use a tool; none when that would not help."""
        if not (self._writing_scopes and isinstance(caller, TokenCaller) and self.is_beyond(caller, tool)):
            return ()
        return (*sorted(caller.scopes), self._writing_scopes[0])

    def toolsets(self, caller: Caller) -> frozenset[str]:
        """The toolsets that are open to a caller."""
        return self._switched_on if caller.toolsets is None else self._switched_on & caller.toolsets

    def may(self, caller: Caller, method: str) -> bool:
        """Whether a method of the console is open to a caller that the roles let in at all."""
        return self._why_not(caller, CONSOLE_RULES[method]) is None

    def _why_not(self, caller: Caller, rule: Rule) -> str | None:
        """What keeps a caller from something, and what would help; None when nothing does."""
        if rule.administers and not (may_administer(caller) or self._trusts(caller)):
            return f"This takes a key with the role {ADMIN!r}; `refdesk keys make NAME --role {ADMIN}` makes one"
        if rule.toolsets and self.toolsets(caller).isdisjoint(rule.toolsets):
            named = " or ".join(map(repr, rule.toolsets))
            return f"This is of the toolset {named}, which is not open to you; ask for a key that opens it"
        if rule.writes and may_only_read(caller):
            return f"This changes what is kept here, and the role {READER!r} only reads; use a key of a {WRITER!r}"
        return None

    def _trusts(self, caller: Caller) -> bool:
        """Whether a caller administers without the role: as everybody does, but for those from who knows where."""
        return not caller.proxied and self._trusts_everybody()

    def _check_roles(self, call: Call) -> None:
        if _KNOWN.isdisjoint(call.caller.roles):
            roles = shortened(", ".join(sorted(call.caller.roles)))
            raise Forbidden(f"The roles of this caller ({roles}) open nothing here; known are {', '.join(ROLES)}")
        if call.method == "tools/call" and self.is_beyond(call.caller, call.target):
            raise Forbidden(f"{call.target} changes what is kept here, and the role {READER!r} only reads")

    def _within_toolsets(self, call: Call, own: frozenset[str]) -> Call:
        """The call with no more toolsets than its caller's key opens; unknown ones are left in, to be told of."""
        toolsets = _METHOD_TOOLSETS.get(call.method)
        if toolsets is not None and own.isdisjoint(toolsets):
            named = " or ".join(map(repr, toolsets))
            raise Forbidden(f"This is of the toolset {named}, which this key does not open")
        uri = _resource_of(call)
        if uri is not None and self._is_of_another_toolset(uri, own):
            raise UnknownResource(f"No resource {shortened(uri)!r}; resources/list says what there is", shortened(uri))
        asked = self._switched_on if call.toolsets is None else call.toolsets
        return replace(call, toolsets=asked - (self._switched_on - own))

    def _shown(self, call: Call, answer: Answer) -> Answer:
        """The answer without the entries of a list that are not for this caller."""
        own = call.caller.toolsets
        if call.method == "tools/list" and may_only_read(call.caller):
            return _filtered(answer, "tools", lambda entry: not self.is_beyond(call.caller, entry["name"]))
        if own is not None and call.method in _RESOURCE_LISTS:
            name, uri = _RESOURCE_LISTS[call.method]
            return _filtered(answer, name, lambda entry: not self._is_of_another_toolset(entry[uri], own))
        return answer

    def _is_of_another_toolset(self, uri: str, own: frozenset[str]) -> bool:
        """One of a scheme that nobody knows is nobody's, and the catalogue says so."""
        toolset = self._resource_toolsets.get(uri.partition(":")[0])
        return toolset is not None and toolset not in own


def _resource_of(call: Call) -> str | None:
    """The resource, or template of resources, that a call is about."""
    if call.method == "resources/read":
        return call.target
    reference = call.params.get("ref") if call.method == "completion/complete" else None
    uri = reference.get("uri") if isinstance(reference, Mapping) else None
    return uri if isinstance(uri, str) else None


def _filtered(answer: Answer, name: str, keep: Callable[[Mapping[str, Any]], bool]) -> Answer:
    return Answer({**answer.result, name: [entry for entry in answer.result[name] if keep(entry)]})
