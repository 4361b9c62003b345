"""A configuration file to begin with: every setting there is with its default, as a comment, made from the models.

As it stands it sets nothing. What is uncommented in it sets what it says, which at first are the defaults.
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
from refdesk.config.models import NOT_SETTINGS, Config
from refdesk.config.settings import SERVERS, SETTINGS
from refdesk.config.types import Url

WIDTH = 100
"""Characters of a line, as far as it can be broken."""

HEAD = """\
# The configuration of Refdesk. Every setting is here with its default, as a comment: remove the `# ` before
# the ones that you want to change, and leave the rest. `refdesk check` says whether the file can be used.
# ${NAME} and ${NAME:-default} are filled in from the environment, so that no secret has to stand here.
"""

SERVERS_EXAMPLE = """\
# The MCP servers behind this one, by name; as in other clients' files. `refdesk servers add` keeps them in a
# file of their own, which is the easier way.
# Such as these, in place of the {}:
#     time:
#       command: uvx
#       args: [mcp-server-time]
#     github:
#       url: https://api.githubcopilot.com/mcp/
#       headers: {Authorization: "Bearer ${GITHUB_TOKEN}"}
mcpServers: {}
"""


def template() -> str:
    """The text of the file."""
    sections = [*_section(Config, "", "")]
    return "\n".join([HEAD, *sections, SERVERS_EXAMPLE])


def _section(part: type[BaseModel], prefix: str, indent: str) -> Iterator[str]:
    """Settings first, then the sections in this one, each a block of lines."""
    inner = {name: field for name, field in part.model_fields.items() if _part(field)}
    for name, field in part.model_fields.items():
        if name not in inner and name not in NOT_SETTINGS and f"{prefix}{name}" != SERVERS:
            yield from _setting(f"{prefix}{name}", name, field, indent)
    for name, field in inner.items():
        kind = _part(field)
        assert kind is not None
        yield from _comment(inspect.getdoc(kind) or "", indent)
        yield f"{indent}{name}:"
        yield from _section(kind, f"{prefix}{name}.", f"{indent}  ")
        if not indent:
            yield ""


def _setting(key: str, name: str, field: FieldInfo, indent: str) -> Iterator[str]:
    setting = SETTINGS[key]
    kind = ", ".join(setting.choices) if setting.choices else setting.bounds
    more = f" ({'any of ' if setting.kind == 'list' else ''}{kind})" if kind else ""
    yield from _comment(f"{field.description}{more}", indent)
    yield f"{indent}# {name}: {_value(key, field)}".rstrip()
    if not indent:
        yield ""


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _value(key: str, field: FieldInfo) -> str:
    """The default as YAML; for a secret, the variable to take it from; nothing for what has no default."""
    if SETTINGS[key].is_secret and SETTINGS[key].kind == "secret":
        names = [variable.name for variable in ENVIRONMENT if variable.key == key]
        return f"${{{names[0]}:-}}" if names else ""
    default = _plain(field.get_default(call_default_factory=True))
    if default is None:
        return ""
    return yaml.safe_dump(default, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    match value:
        case Url() | SecretStr():
            return value.get_secret_value()
        case Path() | Enum():
            return str(value)
        case tuple():
            return [_plain(one) for one in value]
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
    return value


def _part(field: FieldInfo) -> type[BaseModel] | None:
    kind: Any = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
