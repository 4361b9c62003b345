"""Writes the reference pages from the code they describe. Pure: returns text and touches no file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from refdesk.config import ENVIRONMENT, SETTINGS, ApiKey, Setting, Variable, settings_of

SETTINGS_INTRODUCTION = """\
# Settings

Refdesk runs without any of these. A value is looked for in five places, and the last one that has it wins:

1. the default in the tables below;
2. the YAML file: the one named by `--config` or `REFDESK_CONFIG`, else `refdesk.yaml` in the working folder;
3. the environment variable in the tables; of several names for one setting, the first that is set wins;
4. `REFDESK__SECTION__KEY`, which every setting has: `REFDESK__CACHE__TTL__SEARCH=60` sets `cache.ttl.search`;
5. flags on the command line.

In the file, a dot in a key is a level of nesting, and `${NAME}` or `${NAME:-default}` in a text is filled in from the
environment; `$${` stands for the characters `${`. A list may be written as one text with commas. An empty variable
counts as unset, and so does a key without a value. A relative path starts from the working folder.

Unknown keys, keys given twice and values out of bounds stop the server from starting, all named in one report.
`refdesk check` makes that report without starting, and `refdesk check --show` prints every setting with its value and
the place it came from, secrets masked.
"""

KEYS_INTRODUCTION = """\
### The keys of `auth.keys`

Each item of the list has these, and exactly one of `key` and `key_sha256`.
"""

HEADINGS = "| Key | Default | Kind | Environment | What it sets |\n|---|---|---|---|---|"


def settings_page() -> str:
    """The reference page of all settings, in Markdown."""
    sections = groupby(SETTINGS.values(), key=lambda setting: setting.key.rpartition(".")[0].partition(".")[0])
    parts = [SETTINGS_INTRODUCTION, *(_section(name, settings) for name, settings in sections)]
    return "\n".join(parts)


def _section(name: str, settings: Iterable[Setting]) -> str:
    table = f"## {f'`{name}`' if name else 'At the top'}\n\n{_table(settings)}"
    return f"{table}\n{KEYS_INTRODUCTION}\n{_table(settings_of(ApiKey))}" if name == "auth" else table


def _table(settings: Iterable[Setting]) -> str:
    return "\n".join([HEADINGS, *map(_row, settings), ""])


def _row(setting: Setting) -> str:
    cells = (f"`{setting.key}`", _default(setting), _kind(setting), _environment(setting.key), setting.description)
    return f"| {' | '.join(cells)} |"


def _default(setting: Setting) -> str:
    return "" if setting.default in ("not set", "") else f"`{setting.default}`"


def _kind(setting: Setting) -> str:
    choices = ", ".join(f"`{choice}`" for choice in setting.choices)
    if choices:
        return f"list of {choices}" if setting.kind == "list" else choices
    return f"{setting.kind}, {setting.bounds}" if setting.bounds else setting.kind


def _environment(key: str) -> str:
    return ", ".join(map(_variable, (variable for variable in ENVIRONMENT if variable.key == key)))


def _variable(variable: Variable) -> str:
    return f"`{variable.name}` ({variable.note})" if variable.note else f"`{variable.name}`"
