"""Answers by an OpenAI-compatible endpoint: one request, its answer streamed, bounded in time and size.

Every way in which it can fail becomes an error with a sentence that says what to do. The key is in none of them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import orjson
from anyio import to_thread

from refdesk.answers.prompt import Prompt
from refdesk.answers.question import Question
from refdesk.answers.stream import Completion, Malformed
from refdesk.config import AnswersConfig
from refdesk.errors import WriterFailed, WriterMisconfigured
from refdesk.resilience.dependency import SERVICE, Dependency
from refdesk.resilience.response_body import iter_body
from refdesk.resilience.retries import retry_after_seconds
from refdesk.telemetry import outgoing_headers
from refdesk.version import __version__

CONNECT_SECONDS = 5.0
"""An endpoint that does not even pick up by then is down, however long its answers may take."""

MAX_CONNECTIONS = 32
"""Answers at a time; as many again wait their turn within their own deadline, and more are told to come back."""

MAX_ERROR_BYTES = 16 * 1024
"""Of an error's body; only its message is of use."""

MAX_ERROR_CHARACTERS = 200
"""Of that message, as it is passed on."""

REASONING_TOKENS = 2048
"""What a model that reasons before it writes may use for that, besides the answer: for it, the limit counts both."""

_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_BUSY = frozenset((408, 409, 425, 429))


@asynccontextmanager
async def open_chat(settings: AnswersConfig) -> AsyncIterator[Chat | None]:
    """The endpoint that is set, with connections that are kept; None when none is."""
    if settings.api_url is None:
        yield None
        return
    # Reading the system's certificates takes a while.
    trust = await to_thread.run_sync(httpx2.create_ssl_context)
    timeout = httpx2.Timeout(settings.timeout_seconds, connect=min(CONNECT_SECONDS, settings.timeout_seconds))
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS)
    async with httpx2.AsyncClient(verify=trust, timeout=timeout, limits=limits) as client:
        yield Chat(settings, client)


class Chat:
    """Asks the endpoint; made by `open_chat`."""

    def __init__(self, settings: AnswersConfig, client: httpx2.AsyncClient) -> None:
        assert settings.api_url is not None
        url = httpx2.URL(settings.api_url.get_secret_value())
        # A password in the address is sent as a header: the address itself is what a log would show.
        self._login = (url.username, url.password) if url.userinfo else None
        self._url = url.copy_with(userinfo=None, path=url.path.rstrip("/") + "/chat/completions")
        self._key = settings.api_key.get_secret_value() if settings.api_key else None
        self._model = settings.model
        self._seconds = settings.timeout_seconds
        self._client = client
        self.dependency = Dependency("answers", SERVICE, concurrency=MAX_CONNECTIONS)
        self._dislikes: dict[str, frozenset[str]] = {}

    async def write(self, question: Question, prompt: Prompt) -> tuple[str, str]:
        """The model's answer and its name. Never tried again here: an answer costs money, and its asker time."""
        model = question.model or self._model
        completion = await self.dependency.run(partial(self._ask, model, question, prompt))
        if isinstance(completion, WriterFailed):
            raise completion
        return self._answer(completion), completion.model or model

    async def _ask(self, model: str, question: Question, prompt: Prompt) -> Completion | WriterFailed:
        """What the endpoint answers. A refusal is returned, since to refuse is to be there: callers who name models
        that it does not have must not have it taken from the others."""
        with self.dependency.asking("write"):
            with anyio.move_on_after(self._seconds), self._failures_told():
                return await self._complete(model, question, prompt)
            raise self._too_slow()

    async def _complete(self, model: str, question: Question, prompt: Prompt) -> Completion | WriterFailed:
        """Ask; and again without a parameter that the model turns out not to know, as those that reason do."""
        while True:
            disliked = self._dislikes.get(model, frozenset())
            body = _request_body(model, question, prompt, disliked)
            async with self._client.stream(
                "POST", self._url, content=orjson.dumps(body), headers=self._headers(), auth=self._login
            ) as response:
                if response.is_success:
                    return await _received(response)
                error = await _error_of(response)
            if response.status_code >= 500:
                raise self._refusal(response, model, error)
            parameter = _disliked_parameter(response.status_code, error)
            if parameter is None or parameter in disliked:
                return self._refusal(response, model, error)
            self._remember(model, disliked | {parameter})

    def _remember(self, model: str, disliked: frozenset[str]) -> None:
        """Models are named by callers: no more of them are kept than anybody uses."""
        if len(self._dislikes) >= 100:
            self._dislikes.clear()
        self._dislikes[model] = disliked

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"Refdesk/{__version__}",
            **outgoing_headers(),
        }
        return {**headers, "Authorization": f"Bearer {self._key}"} if self._key else headers

    def _answer(self, completion: Completion) -> str:
        text = _THOUGHTS.sub("", completion.text).strip()
        if text:
            return text
        if completion.finish == "length":
            raise WriterFailed(
                f"{self._name} used up its tokens before it wrote an answer. Ask with a larger max_tokens."
            )
        raise WriterFailed(f"{self._name} gave an empty answer. Try again, or ask for another model.")

    @property
    def _name(self) -> str:
        return f"The endpoint for answers ({self._url.host})"

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Turn what goes wrong on the wire into a sentence."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise WriterFailed(f"{self._name} cannot be reached. Check answers.api_url, or try again later.") from error
        except httpx2.TimeoutException as error:
            raise self._too_slow() from error
        except httpx2.HTTPError as error:
            raise WriterFailed(f"{self._name} broke off its answer. Try again.") from error
        except Malformed as error:
            raise WriterFailed(f"{self._name} gave no usable answer: {error}. Try again.") from error

    def _too_slow(self) -> WriterFailed:
        return WriterFailed(
            f"{self._name} took longer than {self._seconds:g} seconds. Try again, or raise answers.timeout_seconds."
        )

    def _refusal(self, response: httpx2.Response, model: str, error: dict[str, Any]) -> WriterFailed:
        status = response.status_code
        said = self._said(error)
        if status in (401, 403):
            return WriterMisconfigured(
                f"{self._name} does not accept the key. Set answers.api_key to one that may use it."
            )
        if status == 404:
            return WriterMisconfigured(
                f"{self._name} has no model {model[:100]!r}, or no chat completions at this address. "
                f"Check the model, answers.model and answers.api_url.{said}"
            )
        if status in _BUSY or status >= 500:
            patience = retry_after_seconds(response.headers.get("retry-after"))
            when = f"in {patience:g} seconds" if patience is not None else "later"
            return WriterFailed(f"{self._name} is busy or broken ({status}). Try again {when}.", retry_after=patience)
        if 300 <= status < 400:
            return WriterMisconfigured(f"{self._name} redirects elsewhere. Set answers.api_url to where it leads.")
        return WriterMisconfigured(f"{self._name} refused the request ({status}). Check answers.model.{said}")

    def _said(self, error: dict[str, Any]) -> str:
        """The endpoint's own words, short and without the key, should it repeat that."""
        message = error.get("message")
        if not isinstance(message, str) or not message.strip():
            return ""
        for secret in filter(None, (self._key, *(self._login or ()))):
            message = message.replace(secret, "********")
        return f" It says: {' '.join(message.split())[:MAX_ERROR_CHARACTERS]!r}."


def _request_body(model: str, question: Question, prompt: Prompt, disliked: frozenset[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
        "stream": True,
    }
    if "temperature" not in disliked:
        body["temperature"] = question.temperature
    if "max_tokens" not in disliked:
        body["max_tokens"] = question.max_tokens
    else:
        body["max_completion_tokens"] = question.max_tokens + REASONING_TOKENS
    return body


async def _received(response: httpx2.Response) -> Completion:
    completion = Completion()
    if "text/event-stream" in response.headers.get("content-type", ""):
        async for data in iter_body(response):
            completion.feed(data)
            if completion.is_done:
                return completion
        completion.end()
        return completion
    body = bytearray()
    async for data in iter_body(response):
        completion.count(data)
        body += data
    completion.take_whole(bytes(body))
    return completion


async def _error_of(response: httpx2.Response) -> dict[str, Any]:
    """What an error's body says of itself; nothing when it is none of the usual form."""
    body = bytearray()
    async for data in iter_body(response):
        body += data
        if len(body) > MAX_ERROR_BYTES:
            return {}
    try:
        error = orjson.loads(bytes(body)).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return {}
    return error if isinstance(error, dict) else {}


def _disliked_parameter(status: int, error: dict[str, Any]) -> str | None:
    """The parameter of ours that the model does not take, when that is what the error is about."""
    if status not in (400, 422):
        return None
    parameter, message = error.get("param"), str(error.get("message", ""))
    return next((name for name in ("max_tokens", "temperature") if name == parameter or f"'{name}'" in message), None)
