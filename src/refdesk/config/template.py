"""The configuration file that `refdesk init` writes: every setting with its description and default."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from refdesk.config.environment import ENVIRONMENT
from refdesk.config.models import Config
from refdesk.config.setting_keys import SERVERS, SETTINGS, get_section_model
from refdesk.config.types import Url

COMMENT_WIDTH = 100
"""Line width for wrapped comments."""

FILE_HEADER = """\
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
    return "\n".join([FILE_HEADER, *_render_section(Config, "", ""), SERVERS_EXAMPLE])


def _render_section(model: type[BaseModel], prefix: str, indent: str) -> Iterator[str]:
    """Yield the lines of a section: its settings first, then its nested sections."""
    inner = {name: kind for name, field in model.model_fields.items() if (kind := get_section_model(field))}
    for name, field in model.model_fields.items():
        if name not in inner and not field.exclude and f"{prefix}{name}" != SERVERS:
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
    default = field.get_default(call_default_factory=True)
    if setting.kind == "secret":
        variables = [f"${{{variable.name}:-}}" for variable in ENVIRONMENT if variable.key == key]
        text = variables[0] if variables else ""
    elif default is None:
        text = ""
    else:
        plain = default.get_secret_value() if isinstance(default, Url) else default
        text = yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
    yield f"{indent}# {name}: {text}".rstrip()
    if not indent:
        yield ""


def _wrap_comment(text: str, indent: str) -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH, initial_indent=prefix, subsequent_indent=prefix)
