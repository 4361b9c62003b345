"""Generates the initial configuration file: every setting with its default, commented out.

Unedited, the file sets nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from refdesk.config.environment import ENVIRONMENT
from refdesk.config.models import METADATA_FIELDS, Config
from refdesk.config.settings import SERVERS, SETTINGS, get_section_model
from refdesk.config.types import Url

WIDTH = 100
"""Line width for wrapped comments."""

HEADER = """\
# Refdesk configuration. Every setting is listed with its default, commented out: to change one, remove the
# `# ` before it. `refdesk check` validates the file. ${NAME} and ${NAME:-default} are replaced by environment
# variables, so that secrets don't have to be in this file.
"""

SERVERS_EXAMPLE = """\
# Downstream MCP servers by name, in the format of other MCP clients. `refdesk servers add` is easier: it
# manages a separate file. Example, instead of the {}:
#     time:
#       command: uvx
#       args: [mcp-server-time]
#     github:
#       url: https://api.githubcopilot.com/mcp/
#       headers: {Authorization: "Bearer ${GITHUB_TOKEN}"}
mcpServers: {}
"""


def render_template() -> str:
    """Return the text of the configuration file."""
    sections = [*_render_section(Config, "", "")]
    return "\n".join([HEADER, *sections, SERVERS_EXAMPLE])


def _render_section(model: type[BaseModel], prefix: str, indent: str) -> Iterator[str]:
    """Yield the lines of a section: its settings first, then its nested sections."""
    inner = {name: kind for name, field in model.model_fields.items() if (kind := get_section_model(field))}
    for name, field in model.model_fields.items():
        if name not in inner and name not in METADATA_FIELDS and f"{prefix}{name}" != SERVERS:
            yield from _render_setting(f"{prefix}{name}", name, field, indent)
    for name, kind in inner.items():
        yield from _wrap_comment(inspect.getdoc(kind) or "", indent)
        yield f"{indent}{name}:"
        yield from _render_section(kind, f"{prefix}{name}.", f"{indent}  ")
        if not indent:
            yield ""


def _render_setting(key: str, name: str, field: FieldInfo, indent: str) -> Iterator[str]:
    setting = SETTINGS[key]
    kind = ", ".join(setting.choices) if setting.choices else setting.bounds
    more = f" ({'any of ' if setting.kind == 'list' else ''}{kind})" if kind else ""
    yield from _wrap_comment(f"{field.description}{more}", indent)
    yield f"{indent}# {name}: {_render_default(key, field)}".rstrip()
    if not indent:
        yield ""


def _wrap_comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _render_default(key: str, field: FieldInfo) -> str:
    """Return the default as YAML; for a secret, a reference to its variable; empty if there is no default."""
    if SETTINGS[key].is_secret and SETTINGS[key].kind == "secret":
        names = [variable.name for variable in ENVIRONMENT if variable.key == key]
        return f"${{{names[0]}:-}}" if names else ""
    default = _to_plain(field.get_default(call_default_factory=True))
    if default is None:
        return ""
    return yaml.safe_dump(default, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _to_plain(value: Any) -> Any:
    match value:
        case Url() | SecretStr():
            return value.get_secret_value()
        case Path() | Enum():
            return str(value)
        case tuple():
            return [_to_plain(one) for one in value]
        case Mapping():
            return {name: _to_plain(one) for name, one in value.items()}
    return value
