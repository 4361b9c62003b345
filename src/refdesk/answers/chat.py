"""Client of an OpenAI-compatible chat completions endpoint.

Responses are streamed, with limits on time and size. Every failure becomes an error that says what to do and never
contains the API key.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import anyio
import orjson
from yarl import URL

from refdesk.answers.question import MAX_NAME_CHARACTERS, ModelPrompt, Question
from refdesk.config.models import AnswersConfig
from refdesk.errors import WriterFailed, WriterMisconfigured
from refdesk.resilience.dependency import SERVICE, Dependency, parse_retry_after
from refdesk.resilience.http_client import (
    CONNECT_ERRORS,
    iter_body,
    open_http_session,
    read_body,
    split_login,
    wrap_body,
)
from refdesk.support.lru import BoundedDict
from refdesk.telemetry.traces import outgoing_headers
from refdesk.version import __version__

CONNECT_SECONDS = 5.0
"""Connect timeout, shorter than the timeout of an answer."""

MAX_CONNECTIONS = 32
"""Concurrent answers; as many again are queued within their own deadline, and more are rejected."""

MAX_REMEMBERED_MODELS = 100
"""Bounded, since callers choose the names of models."""

MAX_ERROR_BYTES = 16 * 1024
"""Largest error body that is read; only its message is used."""

MAX_ERROR_CHARACTERS = 200
"""Length of the endpoint's error message in ours."""

MAX_BODY_BYTES = 4 * 1024 * 1024
"""An answer of 4,000 tokens streams in about a megabyte, most of it overhead around each token."""

REASONING_TOKENS = 2048
"""Extra tokens for models that reason before they write: for them, the limit counts both."""

_REASONING = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_TRANSIENT_STATUSES = frozenset((408, 409, 425, 429))


@asynccontextmanager
async def open_chat(settings: AnswersConfig) -> AsyncIterator[Chat | None]:
    """Open the configured endpoint with a connection pool; yield None if there is none."""
    if settings.api_url is None:
        yield None
        return
    url = URL(settings.api_url.get_secret_value())
    connect_seconds = min(CONNECT_SECONDS, settings.timeout_seconds)
    async with open_http_session(
        url, connect_seconds=connect_seconds, max_connections=MAX_CONNECTIONS, uses_proxy=True
    ) as session:
        yield Chat(settings, url, session)


class Chat:
    """Chat completions client; created by `open_chat`."""

    def __init__(self, settings: AnswersConfig, url: URL, session: aiohttp.ClientSession) -> None:
        base, login = split_login(url)
        self._url = base.with_path(base.path.rstrip("/") + "/chat/completions", keep_query=True)
        self._secrets = [secret for secret in (url.user, url.password) if secret]
        self._key = settings.api_key.get_secret_value() if settings.api_key else None
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"Refdesk/{__version__}",
        }
        if authorization := login or (f"Bearer {self._key}" if self._key else None):
            self._headers["Authorization"] = authorization
        self._model = settings.model
        self._seconds = settings.timeout_seconds
        self._session = session
        self.dependency = Dependency("answers", SERVICE, concurrency=MAX_CONNECTIONS)
        self._unsupported: BoundedDict[str, frozenset[str]] = BoundedDict(MAX_REMEMBERED_MODELS)
        """Parameters that a model rejects."""

    async def write(self, question: Question, prompt: ModelPrompt) -> tuple[str, str]:
        """Return the model's answer and its name. Not retried: an answer costs money and the caller's time."""
        model = question.model or self._model
        completion = await self.dependency.run(partial(self._request_completion, model, question, prompt))
        if isinstance(completion, WriterFailed):
            raise completion
        text = _REASONING.sub("", completion.text).strip()
        if text:
            return text, completion.model or model
        if completion.finish_reason == "length":
            raise WriterFailed(f"{self._name} ran out of tokens before it wrote an answer. Use a larger max_tokens.")
        raise WriterFailed(f"{self._name} returned an empty answer. Try again, or use another model.")

    async def _request_completion(
        self, model: str, question: Question, prompt: ModelPrompt
    ) -> ChatCompletion | WriterFailed:
        """Request a completion within the timeout.

        A refusal is returned, not raised: unknown model names must not open the circuit breaker for other callers.
        """
        with self.dependency.asking("write"):
            try:
                with anyio.move_on_after(self._seconds):
                    return await self._complete(model, question, prompt)
            except CONNECT_ERRORS as error:
                detail = "is unreachable. Check answers.api_url, or try again later."
                raise WriterFailed(f"{self._name} {detail}") from error
            except aiohttp.ClientError as error:
                raise WriterFailed(f"{self._name} closed the connection. Try again.") from error
            except MalformedCompletion as error:
                raise WriterFailed(f"{self._name} returned an invalid answer: {error}. Try again.") from error
            raise WriterFailed(
                f"{self._name} took longer than {self._seconds:g} seconds. Try again, or raise answers.timeout_seconds."
            )

    async def _complete(self, model: str, question: Question, prompt: ModelPrompt) -> ChatCompletion | WriterFailed:
        """Request a completion, again without parameters that the model rejects, as reasoning models do."""
        while True:
            unsupported = self._unsupported.get(model, frozenset())
            body = _build_body(model, question, prompt, unsupported)
            async with self._session.post(
                self._url,
                data=wrap_body(orjson.dumps(body)),
                headers={**self._headers, **outgoing_headers()},
                allow_redirects=False,
            ) as response:
                if 200 <= response.status < 300:
                    return await _read_completion(response)
                error = await _read_error(response)
            if response.status >= 500:
                raise self._build_refusal(response, model, error)
            parameter = _find_unsupported_parameter(response.status, error)
            if parameter is None or parameter in unsupported:
                return self._build_refusal(response, model, error)
            self._unsupported[model] = unsupported | {parameter}

    @property
    def _name(self) -> str:
        return f"The endpoint for answers ({self._url.host})"

    def _build_refusal(self, response: aiohttp.ClientResponse, model: str, error: dict[str, Any]) -> WriterFailed:
        status, message = response.status, error.get("message")
        quoted = ""
        if isinstance(message, str) and message.strip():
            # Shortened, and without credentials.
            for secret in filter(None, (self._key, *self._secrets)):
                message = message.replace(secret, "********")
            quoted = f" It says: {' '.join(message.split())[:MAX_ERROR_CHARACTERS]!r}."
        if status in (401, 403):
            return WriterMisconfigured(f"{self._name} rejected the key. Check answers.api_key.")
        if status == 404:
            return WriterMisconfigured(
                f"{self._name} has no model {model[:100]!r}, or no chat completions at this address. "
                f"Check the model, answers.model and answers.api_url.{quoted}"
            )
        if status in _TRANSIENT_STATUSES or status >= 500:
            retry_after = parse_retry_after(response.headers.get("retry-after"))
            when = f"in {retry_after:g} seconds" if retry_after is not None else "later"
            return WriterFailed(f"{self._name} is unavailable ({status}). Try again {when}.", retry_after=retry_after)
        if 300 <= status < 400:
            return WriterMisconfigured(f"{self._name} redirects to another address. Set answers.api_url to it.")
        return WriterMisconfigured(f"{self._name} rejected the request ({status}). Check answers.model.{quoted}")


class MalformedCompletion(Exception):
    """The body is not a chat completion; the message says why."""


class ChatCompletion:
    """A chat completion as it is received."""

    def __init__(self) -> None:
        self.model = ""
        self.finish_reason: str | None = None
        """Why the model stopped; None until then."""
        self.is_done = False
        self._texts: list[str] = []
        self._rest = b""
        self._size = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of an event stream, split anywhere."""
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise _make_size_error()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._feed_line(line.rstrip(b"\r"))

    def close(self) -> None:
        """End the stream; raise if it is incomplete."""
        self._feed_line(self._rest)
        if not self.is_done and self.finish_reason is None:
            raise MalformedCompletion("its answer ended early")

    def feed_body(self, body: bytes) -> None:
        """Parse a whole body, from an endpoint that does not stream."""
        self._feed_event(body, "message")
        self.is_done = True

    def _feed_line(self, line: bytes) -> None:
        """Parse one line; comments and fields other than `data` are ignored."""
        if not line.startswith(b"data:") or self.is_done:
            return
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self.is_done = True
        elif data:
            self._feed_event(data, "delta")

    def _feed_event(self, data: bytes, holder: str) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise MalformedCompletion("its answer is not JSON") from error
        if not isinstance(event, Mapping):
            raise MalformedCompletion("its answer is not a chat completion")
        if event.get("error"):
            raise MalformedCompletion("it reported an error in the middle of its answer")
        model = event.get("model")
        if isinstance(model, str) and model:
            self.model = model[:MAX_NAME_CHARACTERS]
        choices = event.get("choices")
        choice = next((item for item in choices if isinstance(item, Mapping)), {}) if isinstance(choices, list) else {}
        held = choice.get(holder)
        content = held.get("content") if isinstance(held, Mapping) else None
        if isinstance(content, str):
            self._texts.append(content)
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish_reason = finish


def _build_body(model: str, question: Question, prompt: ModelPrompt, unsupported: frozenset[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
        "stream": True,
    }
    if "temperature" not in unsupported:
        body["temperature"] = question.temperature
    if "max_tokens" not in unsupported:
        body["max_tokens"] = question.max_tokens
    else:
        body["max_completion_tokens"] = question.max_tokens + REASONING_TOKENS
    return body


async def _read_completion(response: aiohttp.ClientResponse) -> ChatCompletion:
    completion = ChatCompletion()
    if "text/event-stream" not in response.headers.get("content-type", ""):
        completion.feed_body(await read_body(response, MAX_BODY_BYTES, _make_size_error))
        return completion
    async for data in iter_body(response):
        completion.feed(data)
        if completion.is_done:
            return completion
    completion.close()
    return completion


def _make_size_error() -> MalformedCompletion:
    return MalformedCompletion(f"its answer is larger than {MAX_BODY_BYTES} bytes")


async def _read_error(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the `error` object of an error response, or an empty one if it has none."""
    try:
        error = orjson.loads(await read_body(response, MAX_ERROR_BYTES, _make_size_error)).get("error")
    except (orjson.JSONDecodeError, AttributeError, MalformedCompletion):
        return {}
    return error if isinstance(error, dict) else {}


def _find_unsupported_parameter(status: int, error: dict[str, Any]) -> str | None:
    """Return the parameter that the model rejected, if that is what the error is about."""
    if status not in (400, 422):
        return None
    parameter, message = error.get("param"), str(error.get("message", ""))
    return next((name for name in ("max_tokens", "temperature") if name == parameter or f"'{name}'" in message), None)
