"""What this version cannot do yet is said, not silently ignored."""

from __future__ import annotations

import re

import pytest

from refdesk.config import load, require_support, support, without_effect
from refdesk.errors import ConfigError


def test_settings_of_parts_that_are_to_come_are_pointed_out_when_they_are_set() -> None:
    config = load(None, {"REDIS_URL": "redis://x:6379", "MCP_PROTOCOL_VERSION": "2025-11-25"})
    assert without_effect(config) == [
        "environment MCP_PROTOCOL_VERSION: downstream.protocol_version has no effect in this version",
    ]


def test_the_defaults_have_nothing_to_point_out_and_all_that_they_need() -> None:
    config = load(None, {})
    assert without_effect(config) == []
    require_support(config)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"REFDESK__TOOLSETS": "docs,downstream"}, "downstream has no tools in this version; there are docs, r2r"),
    ],
)
def test_what_would_change_the_answers_is_refused_with_its_source(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        require_support(load(None, environ))
    assert error.value.detail.startswith(f"environment {next(iter(environ))}")


def test_a_desk_without_any_toolset_is_refused() -> None:
    with pytest.raises(ConfigError, match="none is switched on"):
        require_support(load(None, {}, {"toolsets": []}))


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        ({"cache.type": "redis"}, "redis", "redis"),
        ({"rate_limits.type": "redis"}, "redis", "redis"),
        ({"monitoring.opentelemetry.enabled": True}, "opentelemetry.sdk", "otel"),
        ({"monitoring.sentry.enabled": True, "monitoring.sentry.dsn": "https://k@host/1"}, "sentry_sdk", "sentry"),
    ],
)
def test_an_extra_that_is_needed_and_missing_is_named_with_the_line_that_installs_it(
    settings: dict[str, object], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(None, {}, settings)
    require_support(config)
    monkeypatch.setattr(support, "_is_installed", lambda name: name != package)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'refdesk[{extra}]'")):
        require_support(config)
