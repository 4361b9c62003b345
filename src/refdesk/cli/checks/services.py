"""Checks of services: the embedding model, Redis, R2R, and the chat model that writes answers."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import orjson
from yarl import URL

from refdesk.cli.checks.finding import CheckContext, Finding, fail, ok, warn
from refdesk.config import AnswersConfig
from refdesk.engines.embedded.embedding import open_embedder
from refdesk.errors import RefdeskError
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.telemetry import Metrics

SENTENCE = "How do I start the server?"
"""Text embedded to test the model."""

MAX_MODELS_BYTES = 16 * 1024 * 1024
"""Maximum length of a model list. Those of large providers have a few hundred kilobytes."""


async def check_embedding(context: CheckContext) -> Sequence[Finding]:
    """Check that a text can be embedded."""
    settings = context.config.embedding
    if context.config.r2r.api_url is not None:
        return [ok("not needed: R2R uses its own model")]
    if settings.source == "none":
        return [ok("disabled: search is full-text only")]
    fix = {
        "builtin": "reinstall Refdesk, or set embedding.source to none for full-text search only",
        "onnx": "check embedding.model_path, which needs model.onnx and vocab.txt",
        "endpoint": "check embedding.api_url, embedding.api_key and embedding.api_model",
    }[settings.source]
    try:
        async with open_embedder(settings) as embedder:
            assert embedder is not None
            vector = await embedder.embed_query(SENTENCE)
    except (RefdeskError, OSError, ImportError) as error:
        return [fail(f"the embedding model does not work: {error}", fix)]
    return [ok(f"{embedder.name} works, with {len(vector)} dimensions")]


async def check_cache(context: CheckContext) -> Sequence[Finding]:
    """Check that Redis responds, if it is configured for the cache or the rate limits."""
    settings = context.config.cache
    if "redis" not in (settings.type, context.config.rate_limits.type):
        return [ok("in memory")]
    from refdesk.resilience.redis_connection import open_redis

    reasons: list[str] = []
    async with open_redis(settings.redis, changed=lambda state, reason: reasons.append(reason)) as link:
        if not link.is_away:
            return [ok(f"Redis answers at {settings.redis.url}")]
    why = f": {reasons[0].removeprefix('Redis does not answer: ')}" if reasons and reasons[0] else ""
    fix = "start Redis, or correct cache.redis.url; until then each process has its own cache"
    return [fail(f"Redis does not answer at {settings.redis.url!s}{why}", fix)]


async def check_r2r(context: CheckContext) -> Sequence[Finding]:
    """Check that R2R responds and accepts the account."""
    settings = context.config.r2r
    if settings.api_url is None:
        return [ok("not used: documents are stored locally")]
    from refdesk.engines.r2r.client import open_client
    from refdesk.resilience.dependency import SERVICE, Dependency

    dependency = Dependency("r2r", SERVICE, concurrency=1)
    try:
        async with open_client(settings, dependency, Metrics()) as client:
            await client.check()
            collections = await client.collections()
    except RefdeskError as error:
        return [fail(error.detail, "check r2r.api_url and the account in r2r.email and r2r.password, or r2r.api_key")]
    return [ok(f"R2R answers at {settings.api_url}; the account has {len(collections):,} collections")]


async def check_answers(context: CheckContext) -> Sequence[Finding]:
    """Check that the chat API responds and accepts the key. No tokens are generated, so it costs nothing."""
    settings = context.config.answers
    if settings.api_url is None:
        return [ok("no model is set: `refdesk ask` quotes the documents")]
    url, login = split_login(URL(settings.api_url.get_secret_value()))
    authorization = login or (f"Bearer {settings.api_key.get_secret_value()}" if settings.api_key else None)
    try:
        async with (
            open_http_session(url, connect_seconds=context.timeout, uses_proxy=True) as session,
            session.get(
                url.with_path(url.path.rstrip("/") + "/models", keep_query=True),
                headers={"Authorization": authorization} if authorization else {},
                timeout=aiohttp.ClientTimeout(total=context.timeout),
                allow_redirects=False,
            ) as response,
        ):
            body = await read_body(response, MAX_MODELS_BYTES, lambda: aiohttp.ClientPayloadError("answer is too long"))
    except (aiohttp.ClientError, TimeoutError) as error:
        # The cause has the reason without the details of the client.
        why = str(error.__cause__ or "") or str(error) or type(error).__name__
        return [fail(f"no answer from {settings.api_url}: {why}", "start the service, or correct answers.api_url")]
    return [_check_models(settings, response.status, body)]


def _check_models(settings: AnswersConfig, status: int, body: bytes) -> Finding:
    if status in (401, 403):
        return fail(f"{settings.api_url} rejects the key (HTTP {status})", "check answers.api_key")
    if not 200 <= status < 300:
        text = f"{settings.api_url} answers, but does not list its models (HTTP {status})"
        return warn(text, "try `refdesk ask`; some APIs have no model list")
    try:
        names = [str(one["id"]) for one in orjson.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return warn(f"{settings.api_url} answers, but not with a list of models", "try `refdesk ask`")
    if settings.model in names:
        return ok(f"{settings.api_url} offers {settings.model}")
    return warn(
        f"{settings.api_url} does not list {settings.model}", f"set answers.model to one of {', '.join(names[:5])}"
    )
