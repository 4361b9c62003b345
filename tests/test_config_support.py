"""What is set in vain, or cannot be done here, is said and not silently ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from refdesk.config.loading import load
from refdesk.config.models import TOOLSETS
from refdesk.config.rules import require_support
from refdesk.errors import ConfigError


def test_the_defaults_have_nothing_to_point_out_and_all_that_they_need() -> None:
    config = load(None, {})
    assert config.warnings == ()
    require_support(config)


def test_what_is_set_in_vain_is_pointed_out_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text("mcpServers: {a: {command: x, timeout: 5}}\n")
    (said,) = load(path, {}).warnings
    assert said.startswith("refdesk.yaml: mcpServers.a.timeout: is ignored")


def test_reloading_is_accepted_and_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_text("server: {reload: false}\n")
    assert load(path, {}).warnings == ()
    path.write_text("server: {reload: true}\n")
    (said,) = load(path, {}).warnings
    assert said.startswith("refdesk.yaml: server.reload: has no effect")


def test_every_toolset_can_be_switched_on_alone() -> None:
    for toolset in TOOLSETS:
        require_support(load(None, {"REFDESK__TOOLSETS": toolset}))


def test_a_desk_without_any_toolset_is_refused() -> None:
    with pytest.raises(ConfigError, match="no toolset is enabled"):
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
    settings: dict[str, object], package: str, extra: str
) -> None:
    config = load(None, {}, settings)
    require_support(config)
    with pytest.raises(ConfigError, match=f"run: scripts/setup --extra {extra}$"):
        require_support(config, is_installed=lambda name: name != package)
