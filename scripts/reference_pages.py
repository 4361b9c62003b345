"""Write the reference pages of the manual, which are generated from the code: python scripts/reference_pages.py"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from refdesk import errors
from refdesk.app import open_desk
from refdesk.cli.ask import list_all_tools
from refdesk.cli.exit_codes import ExitCode
from refdesk.cli.parser import cli
from refdesk.config import (
    ENVIRONMENT,
    SETTINGS,
    ApiKey,
    DocsSource,
    McpServerConfig,
    Setting,
    Variable,
    list_settings,
    load,
)
from refdesk.inbound.error_mapping import http_status
from refdesk.telemetry import Metrics

FOLDER = Path(__file__).parents[1] / "docs" / "reference"

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

SERVERS_INTRODUCTION = """\
## The keys of `mcpServers`

Each server stands under its name: 1 to 64 letters, digits, dots, hyphens, underscores or spaces. What other MCP clients
have in their files is accepted as it is; `refdesk servers import` brings it over. In every text of a server, `${NAME}`,
`${NAME:-default}`, `${env:NAME}` and `{NAME}` are filled in from the environment, `${workspaceFolder}` is the working
folder and `${userHome}` the home folder. `envFile` names a file of `NAME=VALUE` lines that stand below `env`. Values of
`env` and `headers`, and what looks like a secret in `args` and `url`, are masked wherever they would be shown.
"""

DOCS_INTRODUCTION = """\
### The keys of `docs`

`docs: true` is the same as `docs: {}`.
"""

HEADINGS = "| Key | Default | Kind | Environment | What it sets |\n|---|---|---|---|---|"


def render_settings_page() -> str:
    """Render the settings page in Markdown."""
    sections = groupby(SETTINGS.values(), key=lambda setting: setting.key.rpartition(".")[0].partition(".")[0])
    servers = [SERVERS_INTRODUCTION, _render_table(list_settings(McpServerConfig))]
    docs = [DOCS_INTRODUCTION, _render_table(list_settings(DocsSource))]
    return "\n".join(
        [SETTINGS_INTRODUCTION, *(_render_section(name, settings) for name, settings in sections), *servers, *docs]
    )


def _render_section(name: str, settings: Iterable[Setting]) -> str:
    table = f"## {f'`{name}`' if name else 'At the top'}\n\n{_render_table(settings)}"
    return f"{table}\n{KEYS_INTRODUCTION}\n{_render_table(list_settings(ApiKey))}" if name == "auth" else table


def _render_table(settings: Iterable[Setting]) -> str:
    return "\n".join([HEADINGS, *map(_render_row, settings), ""])


def _render_row(setting: Setting) -> str:
    cells = (
        f"`{setting.key}`",
        _format_default(setting),
        _format_kind(setting),
        _format_variables(setting.key),
        setting.description,
    )
    return f"| {' | '.join(cells)} |"


def _format_default(setting: Setting) -> str:
    return "" if setting.default in ("not set", "") else f"`{setting.default}`"


def _format_kind(setting: Setting) -> str:
    choices = ", ".join(f"`{choice}`" for choice in setting.choices)
    if choices:
        return f"list of {choices}" if setting.kind == "list" else choices
    return f"{setting.kind}, {setting.bounds}" if setting.bounds else setting.kind


def _format_variables(key: str) -> str:
    return ", ".join(map(_format_variable, (variable for variable in ENVIRONMENT if variable.key == key)))


def _format_variable(variable: Variable) -> str:
    return f"`{variable.name}` ({variable.note})" if variable.note else f"`{variable.name}`"


ERRORS_INTRODUCTION = """\
# Errors

An error is a JSON-RPC error object: `code`, `message`, and `data` with `type`, `detail`, `retryable` and, where it is
known, `retry_after` in seconds. Wrong arguments are all listed in `data.errors`. Over HTTP without JSON-RPC
(`/api/tools`) the same object stands under `error`, with the HTTP status of the table.

What goes wrong inside a tool (`ToolFailure` and what is under it) is not an error of the protocol: it is an answer with
`isError: true`, whose text tells the model what to do next, and whose `_meta` has the same for programs under
`refdesk/error`. Only `/internal/mcp/execute` and `/internal/retrieval/chunks/window` give such a failure a status of
its own: 404 for what is not there, else 422.

| Type | Code | HTTP | Worth a retry | Meaning |
|---|---|---|---|---|
"""

TOOLS_INTRODUCTION = """\
# Tools

What a model sees in `tools/list`. Every tool can also be called as `POST /api/tools/NAME` with its arguments as a JSON
object, and from the command line as `refdesk call NAME argument=value`.
"""

METRICS_INTRODUCTION = """\
# Metrics

`GET /metrics` answers in Prometheus' text format; with several worker processes, summed over all of them. Labels have
few values: a tool's name is one only for tools that exist.

| Metric | Kind | Labels | What it measures |
|---|---|---|---|
"""

COMMANDS_INTRODUCTION = """\
# Command line

`list`, `remove` and the like are alike everywhere: `ls` is `list`, and `rm` and `delete` are `remove`. What a command
prints goes to standard output; what it says beside goes to standard error, and so do progress bars, which are shown on
a terminal alone. Colours are, too; `NO_COLOR` switches them off and `FORCE_COLOR` on.

With `--json`, standard output holds one JSON value, whatever happens; `add --watch` prints one a line. Where a command
fails that is `{"error": {"type", "detail", "hint", …}}`, with the fields of an [error](errors.md); `refdesk call` and
the like print the tool's own answer, with `isError`. What the [exit codes](exit-codes.md) mean has a page of its own.
"""

EXIT_CODES_INTRODUCTION = """\
# Exit codes

What `refdesk` says with its exit code, for scripts.

| Code | Meaning |
|---|---|
"""


def render_errors_page() -> str:
    """Render the page of error types."""
    return ERRORS_INTRODUCTION + "".join(_render_error_row(kind) for kind in _iter_error_types(errors.RefdeskError))


def render_tools_page() -> str:
    """Render the page of tools."""
    return "\n".join([TOOLS_INTRODUCTION, *(_render_tool(tool) for tool in asyncio.run(_load_tools()))])


def render_metrics_page() -> str:
    """Render the page of metrics."""
    families = sorted(Metrics().registry.collect(), key=lambda family: family.name)
    return METRICS_INTRODUCTION + "".join(_render_metric_row(family) for family in families)


def render_commands_page() -> str:
    """Render the page of the command line."""
    # A fixed width, independent of the current terminal.
    contexts = _iter_contexts(cli.make_context(cli.name, [], resilient_parsing=True, terminal_width=100))
    sections = (f"## `{one.command_path}`\n\n```text\n{one.get_help()}\n```\n" for one in contexts)
    return "\n".join([COMMANDS_INTRODUCTION, *sections])


def render_exit_codes_page() -> str:
    """Render the page of exit codes."""
    return EXIT_CODES_INTRODUCTION + "".join(f"| {one.value} | {one.meaning} |\n" for one in ExitCode)


ABSTRACT_ERRORS = (
    errors.RefdeskError,
    errors.ProtocolError,
    errors.InvalidCall,
    errors.ToolFailure,
    errors.Refused,
    errors.DependencyError,
)
"""Base classes that are never raised themselves."""

PAGES = {
    "settings": render_settings_page,
    "tools": render_tools_page,
    "errors": render_errors_page,
    "metrics": render_metrics_page,
    "cli": render_commands_page,
    "exit-codes": render_exit_codes_page,
}


def _iter_error_types(kind: type[errors.RefdeskError]) -> Iterator[type[errors.RefdeskError]]:
    """Yield every concrete error type, wherever it is defined.

    Common errors come first, then those of single modules. The order doesn't depend on import order.
    """
    if kind not in ABSTRACT_ERRORS:
        yield kind
    for child in sorted(
        kind.__subclasses__(), key=lambda child: (child.__module__ != errors.__name__, child.__module__)
    ):
        if child.__module__.startswith("refdesk."):
            yield from _iter_error_types(child)


def _render_error_row(kind: type[errors.RefdeskError]) -> str:
    in_result = issubclass(kind, errors.ToolFailure)
    code = "in the result" if in_result else "at start" if kind is errors.ConfigError else f"{kind.code}"
    status = "200" if in_result else "" if kind is errors.ConfigError else f"{http_status(kind)}"
    meaning = (inspect.getdoc(kind) or "").partition("\n")[0]
    return f"| `{kind.__name__}` | {code} | {status} | {'yes' if kind.retryable else 'no'} | {meaning} |\n"


async def _load_tools() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_desk(load(None, {}, {"data_dir": folder})) as desk:
            return await list_all_tools(desk)


def _render_tool(tool: Mapping[str, Any]) -> str:
    hints = ", ".join(name for name, value in tool["annotations"].items() if value) or "none"
    rows = "".join(_render_argument_row(name, rule, tool["inputSchema"]) for name, rule in _list_properties(tool))
    head = "| Argument | Kind | Default | What it is |\n|---|---|---|---|\n"
    table = f"{head}{rows}" if rows else "It takes no arguments.\n"
    return f"## `{tool['name']}`\n\n{tool['description']}\n\nHints: {hints}.{_format_result(tool)}\n\n{table}"


def _format_result(tool: Mapping[str, Any]) -> str:
    """Return a sentence with the fields of a tool's structured output, if it has one."""
    schema = tool.get("outputSchema")
    return " Answers with: {}.".format(", ".join(f"`{name}`" for name in schema["properties"])) if schema else ""


def _list_properties(tool: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    properties: Mapping[str, Mapping[str, Any]] = tool["inputSchema"]["properties"]
    return properties.items()


def _render_argument_row(name: str, rule: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    default = "required" if name in schema.get("required", ()) else f"`{rule['default']}`" if "default" in rule else ""
    return f"| `{name}` | {_format_argument_kind(rule)} | {default} | {rule.get('description', '')} |\n"


def _format_argument_kind(rule: Mapping[str, Any]) -> str:
    if "anyOf" in rule:
        return " or ".join(_format_argument_kind(each) for each in rule["anyOf"])
    if rule.get("enum", [""])[0] == "all":
        return "one of the indexed sets, or `all`"
    if "enum" in rule:
        return "one of " + ", ".join(f"`{value}`" for value in rule["enum"])
    if rule["type"] == "array":
        return f"1 to {rule['maxItems']} of them"
    if "maximum" in rule:
        return f"{rule['type']}, {rule['minimum']} to {rule['maximum']}"
    if "minimum" in rule:
        return f"{rule['type']}, at least {rule['minimum']}"
    if "maxLength" in rule:
        return f"{rule['type']}, {rule.get('minLength', 0)} to {rule['maxLength']} characters"
    return str(rule["type"])


def _render_metric_row(family: Any) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = ", ".join(f"`{label}`" for label in _find_labels(family.name))
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n"


def _find_labels(family: str) -> tuple[str, ...]:
    metrics = Metrics()
    for metric in vars(metrics).values():
        if getattr(metric, "_name", None) == family:
            return tuple(metric._labelnames)
    return ()


def _iter_contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all commands below it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.commands[name]
            yield from _iter_contexts(click.Context(command, context, name))


if __name__ == "__main__":
    for page, render in PAGES.items():
        (FOLDER / f"{page}.md").write_text(render(), "utf-8")
