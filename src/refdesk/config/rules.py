"""Rules between settings, and between settings and the installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from importlib.util import find_spec

from refdesk.config.messages import Fault, quoted
from refdesk.config.models import TOOLSETS, Config
from refdesk.errors import ConfigError
from refdesk.support.extras import build_install_command

MIN_KEY_LENGTH = 16
"""Characters. Shorter keys can be guessed over the network in reasonable time."""

REDIS_SOURCE = "environment REDIS_URL"
"""Source of the URL that selects Redis for the cache. A `.env` file may mean another program's Redis."""

Violation = tuple[str, tuple[str, ...]]
"""A message, and the settings that the rule reads. It is reported under the first of them."""


def check_rules(config: Config, unusable: Set[str], *, serves: bool) -> Iterator[Fault]:
    """Yield the violations of rules between settings, skipping rules that involve unusable settings.

    Rules of access control apply only if `serves` is set.
    """
    found = [*(_check_access(config) if serves else ()), *_check_keys(config), *_check_services(config)]
    for text, keys in found:
        if unusable.isdisjoint(keys):
            yield Fault(config.sources[keys[0]], keys[0], text)


def find_warnings(config: Config) -> Iterator[Fault]:
    """Yield the settings that have no effect."""
    if config.server.reload:
        text = "has no effect; changes of downstream servers apply at once, and others when you restart the server"
        yield Fault(config.sources["server.reload"], "server.reload", text)
    if config.sources["cache.redis.url"] == REDIS_SOURCE and config.sources["cache.type"] == "default":
        text = f"has no effect, as an extra is not installed; run: {build_install_command('redis')}"
        yield Fault(REDIS_SOURCE, "cache.redis.url", text)


def _check_access(config: Config) -> Iterator[Violation]:
    server, auth = config.server, config.auth
    if not (server.is_loopback or auth.required or server.allow_anonymous):
        text = (
            f"{quoted(server.host)} is reachable from other machines, but authentication is off; "
            "set MCP_AUTH_REQUIRED=true and MCP_API_KEY, or start with --allow-anonymous"
        )
        yield text, ("server.host", "auth.required", "server.allow_anonymous")
    if auth.required and not (auth.keys or auth.oauth.issuer or (config.data_path / "keys.json").exists()):
        text = "no key is configured; set MCP_API_KEY or auth.keys, or create a key with `refdesk keys make`"
        yield text, ("auth.required", "auth.keys", "auth.oauth.issuer", "data_dir")


def _check_keys(config: Config) -> Iterator[Violation]:
    server, oauth = config.server, config.auth.oauth
    if oauth.issuer and not oauth.audience and not (server.is_loopback and server.port):
        text = (
            "access tokens need an audience; set auth.oauth.audience to the URL that clients use, such as "
            "https://desk.example.com/mcp"
        )
        yield text, ("auth.oauth.issuer", "auth.oauth.audience", "server.host", "server.port")
    digests = [key.digest for key in config.auth.keys]
    for digest, count in Counter(digests).items():
        if count > 1:
            numbers = [str(number) for number, other in enumerate(digests, 1) if other == digest]
            yield f"duplicate key: numbers {' and '.join(numbers)} are the same", ("auth.keys",)
    for number, key in enumerate(config.auth.keys, 1):
        for toolset in key.toolsets:
            if toolset not in TOOLSETS:
                text = f"key number {number}: unknown toolset {quoted(toolset)}; expected one of {', '.join(TOOLSETS)}"
                yield text, ("auth.keys",)
    for number, key in enumerate(config.auth.keys, 1):
        if key.key and len(key.key.get_secret_value()) < MIN_KEY_LENGTH and not server.is_loopback:
            text = (
                f"key number {number} is shorter than {MIN_KEY_LENGTH} characters, "
                f"but {quoted(server.host)} is reachable from other machines; use a longer key"
            )
            yield text, ("auth.keys", "server.host")


def _check_services(config: Config) -> Iterator[Violation]:
    server, r2r, embedding, presets = config.server, config.r2r, config.embedding, config.downstream.presets
    if config.monitoring.prometheus.port == server.port:
        text = f"{server.port} is also server.port; choose another"
        yield text, ("monitoring.prometheus.port", "server.port")
    if server.max_body_bytes > server.max_inflight_body_bytes:
        text = f"{server.max_body_bytes} exceeds server.max_inflight_body_bytes, {server.max_inflight_body_bytes}"
        yield text, ("server.max_body_bytes", "server.max_inflight_body_bytes")
    if (r2r.email is None) != (r2r.password is None):
        yield "set both r2r.email and r2r.password, or neither", ("r2r.email", "r2r.password")
    if r2r.api_url is not None and r2r.email is None and r2r.password is None and r2r.api_key is None:
        text = "R2R needs credentials; set r2r.email and r2r.password, or r2r.api_key"
        yield text, ("r2r.api_url", "r2r.email", "r2r.password", "r2r.api_key")
    model = ("embedding.source", "embedding.model_path", "embedding.api_url")
    if embedding.source == "onnx" and embedding.model_path is None:
        yield "onnx needs the folder of a model; set embedding.model_path", model
    if embedding.source == "endpoint" and embedding.api_url is None:
        yield "endpoint needs the URL of an API; set embedding.api_url", model
    for name, one in config.mcpServers.items():
        if one.preset is not None and one.preset not in presets:
            known = f"expected one of {', '.join(presets)}" if presets else "downstream.presets is empty"
            text = f"{quoted(name)}: unknown preset {quoted(one.preset)}; {known}"
            yield text, ("mcpServers", "downstream.presets")
    if config.monitoring.sentry.enabled and config.monitoring.sentry.dsn is None:
        text = "Sentry needs a DSN; set SENTRY_DSN or monitoring.sentry.dsn"
        yield text, ("monitoring.sentry.enabled", "monitoring.sentry.dsn")


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def require_support(config: Config, *, is_installed: Callable[[str], bool] = is_installed) -> None:
    """Raise a ConfigError if a setting needs an extra that isn't installed, or if no toolset is enabled."""
    problems = []
    if not config.toolsets:
        source = config.sources.get("toolsets", "configuration")
        problems.append(f"{source}: toolsets: no toolset is enabled; available: {', '.join(TOOLSETS)}")
    for key, is_enabled, package, extra in (
        ("cache.type", config.cache.type == "redis", "redis", "redis"),
        ("rate_limits.type", config.rate_limits.type == "redis", "redis", "redis"),
        ("monitoring.opentelemetry.enabled", config.monitoring.opentelemetry.enabled, "opentelemetry.sdk", "otel"),
        ("monitoring.sentry.enabled", config.monitoring.sentry.enabled, "sentry_sdk", "sentry"),
    ):
        if is_enabled and not is_installed(package):
            source = config.sources.get(key, "configuration")
            problems.append(
                f"{source}: {key}: needs an extra that is not installed; run: {build_install_command(extra)}"
            )
    if problems:
        raise ConfigError(problems)
