"""Policies of every call: name resolution, observability, authentication and the deadline."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from refdesk.calls import (
    ANONYMOUS,
    UPLOAD_METHOD,
    WINDOW_METHOD,
    Answer,
    Call,
    Caller,
    Handler,
    InputRequired,
    RegistryEntry,
    ToolEntry,
)
from refdesk.config import AuthConfig
from refdesk.documents.tokens import estimate_tokens
from refdesk.errors import DeadlineExceeded, MethodNotFound, RefdeskError, Unauthenticated
from refdesk.policy.keys import FILE_NAME, KeyFile, Keys, digest
from refdesk.policy.permissions import CONSOLE_RULES
from refdesk.resilience.concurrency import Deadlines, Overdue
from refdesk.telemetry import Log, Metrics, Spans, enter_trace, leave_trace

if TYPE_CHECKING:
    from refdesk.policy.jwt import TokenVerifier


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

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        with self._spans.call(call) as span:
            try:
                answer = await proceed(call)
            except MethodNotFound as error:
                span.clear_name()
                span.mark_failed(type(error).__name__, error.code)
                raise
            except RefdeskError as error:
                span.mark_failed(type(error).__name__, error.code)
                raise
            except InputRequired:
                raise
            except BaseException as error:
                span.mark_failed(type(error).__name__)
                raise
            if answer.is_error:
                span.mark_failed("tool_error")
            return answer


class Observe:
    """Logs and counts every outcome, rejections included, without argument values.

    Only `ResolveNames` and `RecordSpan` are further out.
    """

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

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
            self._metrics.count_call(method, tool, outcome, seconds)
            if tool:
                self._metrics.add_tokens_served(tool, estimate_tokens(characters))
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
        return (
            self._tokens.verify(credential, fingerprint)
            if self._tokens.has_token_form(credential)
            else self._accept_unknown()
        )

    def _accept_unknown(self) -> Caller:
        # If keys are optional, a wrong one is still rejected: its owner expects to be authenticated.
        if self._required or self.has_keys:
            raise Unauthenticated(WRONG_KEY)
        return ANONYMOUS

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        if self._required and not call.caller.authenticated:
            raise Unauthenticated(WRONG_KEY)
        return await proceed(call)


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
