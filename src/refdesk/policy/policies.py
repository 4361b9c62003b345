"""Policies of every call: name resolution, observability, authentication, permissions and the deadline."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from refdesk.calls import (
    ADMIN,
    ANONYMOUS,
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
    InputRequired,
    RegistryEntry,
    ToolEntry,
)
from refdesk.config.models import AuthConfig
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN
from refdesk.errors import DeadlineExceeded, Forbidden, RefdeskError, Unauthenticated, UnknownResource
from refdesk.policy.keys import FILE_NAME, KeyFile, Keys, digest
from refdesk.resilience.deadlines import Deadlines, Overdue
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import CallSeries, Metrics
from refdesk.telemetry.traces import enter_trace, leave_trace
from refdesk.validation import shorten

if TYPE_CHECKING:
    from refdesk.policy.jwt import TokenVerifier
    from refdesk.telemetry.otlp import OtlpSpans

_KNOWN_ROLES = frozenset(ROLES)
_WRITE_ROLES = frozenset({WRITER, SERVICE, ADMIN})

_METHOD_TOOLSETS = {WINDOW_METHOD: ("reader",), UPLOAD_METHOD: ("convert", "r2r")}
"""Toolsets that need each of the methods that aren't part of MCP."""


@dataclass(frozen=True, slots=True)
class ConsoleRule:
    """Requirements of a console method."""

    toolsets: tuple[str, ...] = ()
    """At least one of these must be available to the caller. Empty means everyone."""
    writes: bool = False
    administers: bool = False


CONSOLE_RULES: Mapping[str, ConsoleRule] = {
    f"{CONSOLE}{action}": rule
    for rule, actions in {
        ConsoleRule(): "me metrics events",
        ConsoleRule(("docs", "r2r")): "collections documents document read",
        ConsoleRule(("r2r",), writes=True): "create_collection delete_collection delete_documents retry",
        ConsoleRule(("downstream",)): "servers",
        ConsoleRule(administers=True): "server_log set_server refresh_server approve keys make_key revoke_key tenants",
    }.items()
    for action in actions.split()
}
"""All console methods. Each has a rule."""

_RESOURCE_LISTS = {
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
"""The list in an answer, and the field that identifies an entry."""

KNOWN_METHODS = frozenset(
    "tools/list tools/call resources/list resources/templates/list resources/read prompts/list prompts/get "
    f"completion/complete {WINDOW_METHOD} {UPLOAD_METHOD}".split()
).union(CONSOLE_RULES)
"""Known methods. Unknown methods and tools must not become metric labels."""

WRONG_KEY = "Invalid API key"
NO_TOKEN = "This server needs an access token"


class ResolveNames:
    """Sets the tool of a call, and replaces aliases of tools and prompts by their listed names."""

    def __init__(
        self, find_tool: Callable[[str], ToolEntry | None], find_prompt: Callable[[str], RegistryEntry | None]
    ) -> None:
        self._find_tool = find_tool
        self._find_prompt = find_prompt

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        name = call.target
        if call.method == "tools/call":
            tool = self._find_tool(name)
            if tool is not None and tool.name != name:
                # An alias that the caller may not use must look like an unknown name.
                tool = tool if tool.is_open_to(call.caller) else None
                call = replace(call, params={**call.params, "name": tool.name}) if tool is not None else call
            call.tool = tool
        elif call.method == "prompts/get":
            prompt = self._find_prompt(name)
            if prompt is not None and prompt.name != name and prompt.is_open_to(call.caller):
                call = replace(call, params={**call.params, "name": prompt.name})
        return await proceed(call)


class RecordSpan:
    """Records a span for each call. A separate policy, so that it costs nothing if tracing is off."""

    def __init__(self, spans: OtlpSpans) -> None:
        self._spans = spans

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        with self._spans.call(call) as span:
            answer = await proceed(call)
            if answer.is_error:
                self._spans.mark_failed(span, "tool_error")
            return answer


class Observe:
    """Logs and counts every outcome, rejections included, without argument values.

    Only `ResolveNames` and `RecordSpan` are further out.
    """

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        # Methods, tools and outcomes are few.
        self._series: dict[tuple[str, str, str], CallSeries] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        started = perf_counter()
        token = enter_trace(call.trace_id)
        outcome, characters = "internal_error", 0
        self._metrics.under_way += 1
        try:
            answer = await proceed(call)
            outcome = "tool_error" if answer.is_error else "ok"
            characters = sum([len(item.get("text", "")) for item in answer.result.get("content", ())])
            return answer
        except RefdeskError as error:
            outcome = type(error).__name__
            raise
        except InputRequired:
            outcome = "input_required"
            raise
        except CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.under_way -= 1
            leave_trace(token)
            seconds = perf_counter() - started
            # An unknown method gets no label, and its target may be anything.
            method = call.method if call.method in KNOWN_METHODS else ""
            target = call.target if method else ""
            tool = call.tool.name if call.tool is not None else ""
            series = self._series.get((method, tool, outcome))
            if series is None:
                series = self._series[method, tool, outcome] = self._metrics.bind_call(method, tool, outcome)
            series.increment()
            series.observe_seconds(seconds)
            if series.add_tokens is not None:
                series.add_tokens(characters // CHARACTERS_PER_TOKEN)
            if self._log.includes_calls:
                self._log.call(call, target, outcome, seconds)


@asynccontextmanager
async def open_authentication(settings: AuthConfig, data: Path, audience: str) -> AsyncIterator[Authenticate]:
    """Open authentication with API keys, and with access tokens if an issuer is configured."""
    keys = Keys(settings.keys, KeyFile(data / FILE_NAME))
    if settings.oauth.issuer is None:
        yield Authenticate(keys, required=settings.required)
        return
    # Slow to import, and most installations use no access tokens.
    from refdesk.policy.jwt import open_token_verifier

    async with open_token_verifier(settings.oauth, audience) as tokens:
        yield Authenticate(keys, tokens, required=settings.required)


class Authenticate:
    """Authentication policy.

    Transports resolve credentials with `identify`. The policy makes sure that none of them skipped it.
    """

    def __init__(self, keys: Keys, tokens: TokenVerifier | None = None, *, required: bool) -> None:
        self.keys = keys
        self._tokens = tokens
        self._required = required

    @property
    def has_keys(self) -> bool:
        """Whether callers are authenticated, by keys or by tokens."""
        return self._tokens is not None or self.keys.in_use

    def describe(self) -> dict[str, Any]:
        """Return the state of the token issuer, if one is configured."""
        return {} if self._tokens is None else {"issuer": self._tokens.issuer.describe()}

    def identify(self, credential: str | None) -> Caller | Awaitable[Caller]:
        """Return the caller of a credential. Raises if it's invalid, or missing although required.

        The result is awaitable only for an access token that isn't cached.
        """
        if credential is None:
            if self._required:
                raise Unauthenticated(WRONG_KEY if self.keys.in_use else NO_TOKEN)
            return ANONYMOUS
        fingerprint = digest(credential)
        caller = self.keys.find(fingerprint)
        if caller is not None or self._tokens is None:
            return caller or self._accept_unknown()
        if (caller := self._tokens.find_cached(fingerprint)) is not None:
            return caller
        if not self._tokens.has_token_form(credential):
            return self._accept_unknown()
        return self._tokens.verify(credential, fingerprint)

    def _accept_unknown(self) -> Caller:
        # If keys are optional, a wrong one is still rejected: its owner expects to be authenticated.
        if self._required or self.has_keys:
            raise Unauthenticated(WRONG_KEY)
        return ANONYMOUS

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        if self._required and not call.caller.authenticated:
            raise Unauthenticated(WRONG_KEY)
        return await proceed(call)


@dataclass(frozen=True, slots=True)
class TokenCaller(Caller):
    """A caller with an access token, which can be replaced by one with more scopes."""

    scopes: frozenset[str] = frozenset()


T = TypeVar("T", bound=ToolEntry)


def can_administer(caller: Caller) -> bool:
    """Return whether a caller may administer the server: the local user, or the role `admin`."""
    return caller.local or ADMIN in caller.roles


def can_only_read(caller: Caller) -> bool:
    """Return whether a caller has roles, but none that may write."""
    return bool(caller.roles) and _WRITE_ROLES.isdisjoint(caller.roles)


def can_reach(caller: Caller, server: str, name: str | None, tenants: Collection[str]) -> bool:
    """Return whether a caller may access an item of a downstream server.

    `name` is the server's own name of a tool or prompt, or the URI of a resource, and None stands for any of them.
    `tenants` are those that the server is for, empty for all.
    """
    if tenants and caller.tenant not in tenants:
        return False
    if caller.servers is None:
        return True
    return any(
        fnmatchcase(server, of_server) and (name is None or fnmatchcase(name, of_item))
        for pattern in caller.servers
        for of_server, of_item in _split_pattern(pattern)
    )


def can_reach_any(caller: Caller, server: str, tenants: Collection[str]) -> bool:
    """Return whether a caller may access anything of a downstream server."""
    return can_reach(caller, server, None, tenants)


def _split_pattern(pattern: str) -> list[tuple[str, str]]:
    """Return the patterns of a server and its items that a key's pattern may mean.

    A pattern with `__` never means a server alone: `docs__*` matches everything of `docs`, and nothing of a server
    named `docs__internal`.
    """
    positions = [position for position in range(len(pattern)) if pattern.startswith("__", position)]
    return [(pattern[:position], pattern[position + 2 :]) for position in positions] or [(pattern, "*")]


class Permissions:
    """Permission policy: roles, toolsets and servers that a caller may use.

    Roles add up. A caller without roles may use every tool. With roles it may do what they allow together. An unknown
    role allows nothing, so a misspelt one fails closed and at once:

        reader      tools that only read
        writer      every tool
        service     every tool, and acting for other users and tenants (`inbound.endpoints`)
        admin       every tool, and administration

    Toolsets restrict this further: tools, prompts, resources and completions of other toolsets don't exist for the
    caller, in lists and in calls. The tenants of a downstream server and the servers that a key grants have the same
    effect. Readers only get downstream tools that are annotated as read-only.

    Console methods have rules of the same kind (`CONSOLE_RULES`), so the console allows nothing that tools don't.
    `filter_tools` applies the same rules to other lists of tools.
    """

    def __init__(
        self,
        enabled: Iterable[str],
        find_tool: Callable[[str], ToolEntry | None],
        resource_toolsets: Mapping[str, str],
        scope_roles: Mapping[str, Sequence[str]],
        trusts_all_callers: Callable[[], bool] = lambda: False,
    ) -> None:
        """Initialize the policy.

        `resource_toolsets` maps URI schemes to toolsets, and `scope_roles` maps the scopes of access tokens to roles.
        `trusts_all_callers` returns whether all callers are administrators at the moment.
        """
        self._enabled = frozenset(enabled)
        self._trusts_all_callers = trusts_all_callers
        self._find_tool = find_tool
        self._resource_toolsets = resource_toolsets
        self._writing_scopes = [scope for scope, roles in scope_roles.items() if not _WRITE_ROLES.isdisjoint(roles)]

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        caller = call.caller
        rule = CONSOLE_RULES.get(call.method)
        if rule is None and not caller.roles and caller.toolsets is None:
            return await proceed(call)
        if caller.roles:
            if _KNOWN_ROLES.isdisjoint(caller.roles):
                roles = shorten(", ".join(sorted(caller.roles)))
                raise Forbidden(f"The roles of this caller ({roles}) grant nothing; known roles are {', '.join(ROLES)}")
            if _is_beyond_role(caller, call.tool):
                raise Forbidden(f"{call.target} changes data, and the role {READER!r} is read-only")
        if rule is not None and (reason := self._explain_denial(caller, rule)):
            raise Forbidden(reason)
        if caller.toolsets is not None:
            call = self._restrict_toolsets(call, caller.toolsets)
        return self._filter_answer(call, await proceed(call))

    def filter_tools(self, tools: Callable[[Call], list[T]]) -> Callable[[Call], list[T]]:
        """Wrap a tool list to leave out the tools that the caller may not use."""

        def list_allowed(call: Call) -> list[T]:
            only_read = can_only_read(call.caller)
            return [tool for tool in tools(call) if not only_read or tool.annotations.read_only]

        return list_allowed

    def is_beyond_role(self, caller: Caller, tool: str) -> bool:
        """Return whether a tool exists for a caller, but its roles don't allow it."""
        return _is_beyond_role(caller, self._find_tool(tool))

    def scopes_for(self, caller: Caller, tool: str) -> tuple[str, ...]:
        """Return the scopes that a new access token needs for a tool, empty if that wouldn't help."""
        if not (self._writing_scopes and isinstance(caller, TokenCaller) and self.is_beyond_role(caller, tool)):
            return ()
        return (*sorted(caller.scopes), self._writing_scopes[0])

    def toolsets(self, caller: Caller) -> frozenset[str]:
        """Return the toolsets available to a caller."""
        return self._enabled if caller.toolsets is None else self._enabled & caller.toolsets

    def may(self, caller: Caller, method: str) -> bool:
        """Return whether a caller may call a console method."""
        return self._explain_denial(caller, CONSOLE_RULES[method]) is None

    def _explain_denial(self, caller: Caller, rule: ConsoleRule) -> str | None:
        """Return why a caller may not call a method and how to fix it, or None if it may."""
        if rule.administers and not can_administer(caller) and not (caller.at_console and self._trusts_all_callers()):
            return f"This requires the role {ADMIN!r}; create a key with `refdesk keys make NAME --role {ADMIN}`"
        if rule.toolsets and self.toolsets(caller).isdisjoint(rule.toolsets):
            named = " or ".join(map(repr, rule.toolsets))
            return f"This belongs to the toolset {named}, which your key doesn't grant; ask for a key that does"
        if rule.writes and can_only_read(caller):
            return f"This changes data, and the role {READER!r} is read-only; use a key with the role {WRITER!r}"
        return None

    def _restrict_toolsets(self, call: Call, own: frozenset[str]) -> Call:
        """Restrict the call's toolsets to those of the caller's key. Unknown ones are kept, to be reported later."""
        toolsets = _METHOD_TOOLSETS.get(call.method)
        if toolsets is not None and own.isdisjoint(toolsets):
            named = " or ".join(map(repr, toolsets))
            raise Forbidden(f"This belongs to the toolset {named}, which this key doesn't grant")
        uri = _get_resource(call)
        if uri is not None and self._is_of_another_toolset(uri, own):
            raise UnknownResource(f"No resource {shorten(uri)!r}; see resources/list", shorten(uri))
        requested = self._enabled if call.toolsets is None else call.toolsets
        return replace(call, toolsets=requested - (self._enabled - own))

    def _filter_answer(self, call: Call, answer: Answer) -> Answer:
        """Remove list entries that the caller may not see."""
        own = call.caller.toolsets
        if call.method == "tools/list" and can_only_read(call.caller):
            return _filter_entries(answer, "tools", lambda entry: not self.is_beyond_role(call.caller, entry["name"]))
        if own is not None and call.method in _RESOURCE_LISTS:
            name, uri = _RESOURCE_LISTS[call.method]
            return _filter_entries(answer, name, lambda entry: not self._is_of_another_toolset(entry[uri], own))
        return answer

    def _is_of_another_toolset(self, uri: str, own: frozenset[str]) -> bool:
        """Return whether a URI belongs to a toolset outside `own`. Unknown schemes are left to the dispatcher."""
        toolset = self._resource_toolsets.get(uri.partition(":")[0])
        return toolset is not None and toolset not in own


def _is_beyond_role(caller: Caller, tool: ToolEntry | None) -> bool:
    return tool is not None and can_only_read(caller) and not tool.annotations.read_only and tool.is_open_to(caller)


def _get_resource(call: Call) -> str | None:
    """Return the URI of the resource, or resource template, that a call refers to."""
    if call.method == "resources/read":
        return call.target
    reference = call.params.get("ref") if call.method == "completion/complete" else None
    uri = reference.get("uri") if isinstance(reference, Mapping) else None
    return uri if isinstance(uri, str) else None


def _filter_entries(answer: Answer, name: str, keep: Callable[[Mapping[str, Any]], bool]) -> Answer:
    return Answer({**answer.result, name: [entry for entry in answer.result[name] if keep(entry)]})


class Deadline:
    """Time limit for every call: the default, or the limit of its tool."""

    def __init__(self, seconds: float, tool_seconds: Callable[[Call], float | None] = lambda _: None) -> None:
        self._default_seconds = seconds
        self._tool_seconds = tool_seconds
        self._by_seconds: dict[float, Deadlines] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        seconds = self._tool_seconds(call)
        if seconds is None:
            seconds = self._default_seconds
        deadlines = self._by_seconds.get(seconds)
        if deadlines is None:
            deadlines = self._by_seconds[seconds] = Deadlines(seconds)
        try:
            return await deadlines.run(proceed, call)
        except Overdue:
            raise DeadlineExceeded(f"The call took longer than {seconds:g} s and was stopped") from None
