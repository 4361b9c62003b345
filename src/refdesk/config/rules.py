"""Rules between settings. A rule is checked only if the settings it reads are valid on their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from refdesk.config.models import TOOLSETS, Config
from refdesk.config.wording import Fault, quoted

MIN_KEY_LENGTH = 8
"""Characters. Shorter keys can be guessed over the network in reasonable time."""


@dataclass(frozen=True, slots=True)
class CrossSettingRule:
    """A check of several settings, reported under the first of them."""

    keys: tuple[str, ...]
    check: Callable[[Config], Iterator[str]]
    is_access_rule: bool = False
    """Whether the rule is about access control, and so doesn't apply where nothing is served."""


def check_rules(config: Config, unusable: Set[str], *, serves: bool) -> Iterator[Fault]:
    """Yield the violations of rules between settings, skipping rules that involve unusable settings."""
    for rule in RULES:
        if unusable.isdisjoint(rule.keys) and (serves or not rule.is_access_rule):
            source = config.sources[rule.keys[0]]
            yield from (Fault(source, rule.keys[0], text) for text in rule.check(config))


def _check_anonymous_access(config: Config) -> Iterator[str]:
    if not (config.server.is_loopback or config.auth.required or config.server.allow_anonymous):
        yield (
            f"{quoted(config.server.host)} is reachable from other machines, but authentication is off; "
            "set MCP_AUTH_REQUIRED=true and MCP_API_KEY, or start with --allow-anonymous"
        )


def _check_keys_exist(config: Config) -> Iterator[str]:
    if not config.auth.required or config.auth.keys or config.auth.oauth.issuer:
        return
    if not (config.data_path / "keys.json").exists():
        yield "no key is configured; set MCP_API_KEY or auth.keys, or create a key with `refdesk keys make`"


def _check_token_audience(config: Config) -> Iterator[str]:
    oauth = config.auth.oauth
    if oauth.issuer and not oauth.audience and not (config.server.is_loopback and config.server.port):
        yield (
            "access tokens need an audience; set auth.oauth.audience to the URL that clients use, such as "
            "https://desk.example.com/mcp"
        )


def _check_unique_keys(config: Config) -> Iterator[str]:
    digests = [key.digest for key in config.auth.keys]
    for digest, count in Counter(digests).items():
        if count > 1:
            numbers = [str(number) for number, other in enumerate(digests, 1) if other == digest]
            yield f"duplicate key: numbers {' and '.join(numbers)} are the same"


def _check_key_toolsets(config: Config) -> Iterator[str]:
    for number, key in enumerate(config.auth.keys, 1):
        for toolset in key.toolsets:
            if toolset not in TOOLSETS:
                yield f"key number {number}: unknown toolset {quoted(toolset)}; expected one of {', '.join(TOOLSETS)}"


def _check_key_length(config: Config) -> Iterator[str]:
    for number, key in enumerate(config.auth.keys, 1):
        if key.key and len(key.key.get_secret_value()) < MIN_KEY_LENGTH and not config.server.is_loopback:
            yield (
                f"key number {number} is shorter than {MIN_KEY_LENGTH} characters, "
                f"but {quoted(config.server.host)} is reachable from other machines; use a longer key"
            )


def _check_body_limits(config: Config) -> Iterator[str]:
    server = config.server
    if server.max_body_bytes > server.max_inflight_body_bytes:
        yield f"{server.max_body_bytes} exceeds server.max_inflight_body_bytes, {server.max_inflight_body_bytes}"


def _check_service_account(config: Config) -> Iterator[str]:
    if (config.r2r.email is None) != (config.r2r.password is None):
        yield "set both r2r.email and r2r.password, or neither"


def _check_r2r_account(config: Config) -> Iterator[str]:
    r2r = config.r2r
    if r2r.api_url is not None and r2r.email is None and r2r.password is None and r2r.api_key is None:
        yield "R2R needs credentials; set r2r.email and r2r.password, or r2r.api_key"


def _check_embedding_model(config: Config) -> Iterator[str]:
    embedding = config.embedding
    if embedding.source == "onnx" and embedding.model_path is None:
        yield "onnx needs the folder of a model; set embedding.model_path"
    if embedding.source == "endpoint" and embedding.api_url is None:
        yield "endpoint needs the URL of an API; set embedding.api_url"


def _check_sentry_dsn(config: Config) -> Iterator[str]:
    if config.monitoring.sentry.enabled and config.monitoring.sentry.dsn is None:
        yield "Sentry needs a DSN; set SENTRY_DSN or monitoring.sentry.dsn"


def _check_server_presets(config: Config) -> Iterator[str]:
    presets = config.downstream.presets
    for name, server in config.mcpServers.items():
        if server.preset is not None and server.preset not in presets:
            known = f"expected one of {', '.join(presets)}" if presets else "downstream.presets is empty"
            yield f"{quoted(name)}: unknown preset {quoted(server.preset)}; {known}"


RULES = (
    CrossSettingRule(
        ("server.host", "auth.required", "server.allow_anonymous"), _check_anonymous_access, is_access_rule=True
    ),
    CrossSettingRule(
        ("auth.required", "auth.keys", "auth.oauth.issuer", "data_dir"), _check_keys_exist, is_access_rule=True
    ),
    CrossSettingRule(("auth.oauth.issuer", "auth.oauth.audience", "server.host", "server.port"), _check_token_audience),
    CrossSettingRule(("auth.keys",), _check_unique_keys),
    CrossSettingRule(("auth.keys",), _check_key_toolsets),
    CrossSettingRule(("auth.keys", "server.host"), _check_key_length),
    CrossSettingRule(("server.max_body_bytes", "server.max_inflight_body_bytes"), _check_body_limits),
    CrossSettingRule(("r2r.email", "r2r.password"), _check_service_account),
    CrossSettingRule(("r2r.api_url", "r2r.email", "r2r.password", "r2r.api_key"), _check_r2r_account),
    CrossSettingRule(("embedding.source", "embedding.model_path", "embedding.api_url"), _check_embedding_model),
    CrossSettingRule(("mcpServers", "downstream.presets"), _check_server_presets),
    CrossSettingRule(("monitoring.sentry.enabled", "monitoring.sentry.dsn"), _check_sentry_dsn),
)
