"""Write the reference pages of the manual, which are generated from the code.

python scripts/reference_pages.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from refdesk import errors
from refdesk.app import open_desk
from refdesk.cli.ask import complete_schema, list_all_tools
from refdesk.cli.error_report import ExitCode
from refdesk.cli.parser import cli
from refdesk.config.environment import ENVIRONMENT, Variable
from refdesk.config.loading import load
from refdesk.config.models import ApiKey
from refdesk.config.server_model import DocsSource, McpServerConfig
from refdesk.config.setting_keys import SETTINGS, Setting, list_settings
from refdesk.inbound.jsonrpc import http_status
from refdesk.telemetry.metrics import Metrics

FOLDER = Path(__file__).parents[1] / "docs" / "reference"

SETTINGS_INTRODUCTION = """\
# Settings

Every setting has a default. A value comes from the first of these places that has it:

1. command-line flags;
2. `REFDESK__SECTION__KEY`: for example, `REFDESK__CACHE__TTL__SEARCH=60` sets `cache.ttl.search`;
3. the environment variables listed below; of several for one setting, the first that is set;
4. the YAML file: `--config`, else `REFDESK_CONFIG`, else `refdesk.yaml` in the working folder;
5. the default.

In the file, a dot in a key is a level of nesting. `${NAME}` and `${NAME:-default}` are replaced from the environment;
`$${` is a literal `${`. A list can be a string with commas. Empty variables and keys without a value count as unset.
Relative paths start at the working folder.

Unknown or duplicate keys and invalid values prevent the start and are reported together. `refdesk check` reports them
without starting. `refdesk check --show` prints every setting with its value and origin, secrets masked.
"""

KEYS_INTRODUCTION = """\
### `auth.keys` entries

Each entry has exactly one of `key` and `key_sha256`.
"""

SERVERS_INTRODUCTION = """\
## `mcpServers` entries

Each server is under its name: 1 to 64 letters, digits, dots, hyphens, underscores or spaces. Entries of other MCP
clients' files are accepted unchanged.

- `${NAME}`, `${NAME:-default}`, `${env:NAME}` and `{NAME}` are replaced from the environment, `${workspaceFolder}` by
  the working folder and `${userHome}` by the home folder.
- `envFile` names a file of `NAME=VALUE` lines; `env` overrides them.
- Values of `env` and `headers`, and whatever looks like a secret in `args` and `url`, are masked in all output.
"""

DOCS_INTRODUCTION = """\
### `docs` of a server

`docs: true` is the same as `docs: {}`.
"""

TYPES = {"true or false": "boolean", "whole number": "integer", "text": "string"}
COLUMNS = ("Key", "Default", "Type", "Environment", "Description")


def render_settings_page() -> str:
    """Render the settings page in Markdown."""
    sections: dict[str, list[Setting]] = {}
    for setting in SETTINGS.values():
        sections.setdefault(setting.key.rpartition(".")[0].partition(".")[0], []).append(setting)
    pages = [SETTINGS_INTRODUCTION, *(_render_section(name, settings) for name, settings in sections.items())]
    pages += [SERVERS_INTRODUCTION, _render_table(list_settings(McpServerConfig))]
    return "\n".join([*pages, DOCS_INTRODUCTION, _render_table(list_settings(DocsSource))])


def _render_section(name: str, settings: Iterable[Setting]) -> str:
    table = f"## {f'`{name}`' if name else 'Top level'}\n\n{_render_table(settings)}"
    return f"{table}\n{KEYS_INTRODUCTION}\n{_render_table(list_settings(ApiKey))}" if name == "auth" else table


def _render_table(settings: Iterable[Setting]) -> str:
    """Render a table of settings, without the column of environment variables if there are none."""
    rows = [
        (f"`{one.key}`", _format_default(one), _format_kind(one), _format_variables(one.key), one.description)
        for one in settings
    ]
    has_variables = any(row[3] for row in rows)
    columns = [0, 1, 2, 3, 4] if has_variables else [0, 1, 2, 4]
    lines = [[row[number] for number in columns] for row in (COLUMNS, *rows)]
    lines.insert(1, ["---"] * len(columns))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _format_default(setting: Setting) -> str:
    return "" if setting.default in ("not set", "") else f"`{setting.default}`"


def _format_kind(setting: Setting) -> str:
    choices = ", ".join(f"`{choice}`" for choice in setting.choices)
    if choices:
        return f"list of {choices}" if setting.kind == "list" else choices
    kind = TYPES.get(setting.kind, setting.kind)
    return f"{kind}, {setting.bounds}" if setting.bounds else kind


def _format_variables(key: str) -> str:
    return ", ".join(map(_format_variable, (variable for variable in ENVIRONMENT if variable.key == key)))


def _format_variable(variable: Variable) -> str:
    return f"`{variable.name}` ({variable.note})" if variable.note else f"`{variable.name}`"


ERRORS_INTRODUCTION = """\
# Errors

An error is a JSON-RPC error object with `code`, `message` and `data`. `data` has `type`, `detail`, `retryable` and, if
known, `retry_after` in seconds. `InvalidArguments` lists all problems in `data.errors`. REST endpoints return the same
object as `error`, with the HTTP status of the table.

| Type | Code | HTTP | Retryable | Meaning |
|---|---|---|---|---|
"""

FAILURES_INTRODUCTION = """\

## Tool failures

A failure inside a tool is a result with `isError: true`, over REST with status 200. Its text tells the model what to do
next. `_meta["refdesk/error"]` has the same fields as `data`. Only the `/internal` endpoints use an HTTP error: 404 if
something doesn't exist, else 422. `CannotReach` is retryable.

| Type | Meaning |
|---|---|
"""

TOOLS_INTRODUCTION = """\
# Tools

The tools of `tools/list`. Call one over REST with `POST /api/tools/NAME` and its arguments as a JSON object, or on the
command line with `refdesk call NAME argument=value`. Tools are annotated with `readOnlyHint: true` and
`openWorldHint: false` unless noted; hints with the protocol's default aren't sent. To save tokens, `tools/list` omits
some limits of arguments and the less important fields of results.

Refdesk's own tools also accept synonyms of some arguments: `document_id`, `doc_id`, `handle` and `id` are the same, and
so are `doc_type`, `collection_id` and `collection`; `max_results` and `limit`; `query` and `question`;
`anchor_chunk_id` and `chunk_id`. A number or boolean may be sent as text, and `null` stands for an omitted argument.
"""

METRICS_INTRODUCTION = """\
# Metrics

`GET /metrics` returns these metrics in Prometheus's text format, summed over all worker processes. The label `tool` is
set only for tools that exist.

| Metric | Type | Labels | Description |
|---|---|---|---|
"""

COMMANDS_INTRODUCTION = """\
# Command line

Results go to standard output. Messages and progress bars go to standard error. Progress bars and colors appear only on
a terminal; `NO_COLOR` disables colors and `FORCE_COLOR` forces them. `ls` is an alias of `list`, `rm` and `delete` of
`remove`. See also the [exit codes](exit-codes.md).

## Common options

Every command takes these, except that `serve` has no `--json`:

| Option | Meaning |
|---|---|
| `-h`, `--help` | show the command's help |
| `--config FILE` | configuration file (default `./refdesk.yaml`) |
| `--data DIR` | data folder (default: the platform's user data folder) |
| `--json` | print one JSON value; `add --watch` prints one per line |

With `--json`, a failed command prints `{"error": {"type", "detail", "hint", …}}` with the fields of an
[error](errors.md). `refdesk call` and other tool commands print the tool's result, with `isError` if it failed.
"""

EXIT_CODES_INTRODUCTION = """\
# Exit codes

| Code | Meaning |
|---|---|
"""


def render_errors_page() -> str:
    """Render the page of error types: errors of the protocol, then failures inside tools."""
    kinds = list(_iter_error_types(errors.RefdeskError))
    failures = [kind for kind in kinds if issubclass(kind, errors.ToolFailure)]
    rows = [_render_error_row(kind) for kind in kinds if kind not in failures]
    failure_rows = [f"| `{kind.__name__}` | {_get_meaning(kind)} |\n" for kind in failures]
    return "".join([ERRORS_INTRODUCTION, *rows, FAILURES_INTRODUCTION, *failure_rows])


def render_tools_page() -> str:
    """Render the page of tools."""
    tools = asyncio.run(_load_tools())
    return "\n".join([TOOLS_INTRODUCTION, *(_render_tool(tool, tools[:number]) for number, tool in enumerate(tools))])


def render_metrics_page() -> str:
    """Render the page of metrics."""
    families = sorted(Metrics().registry.collect(), key=lambda family: family.name)
    return METRICS_INTRODUCTION + "".join(_render_metric_row(family) for family in families)


def render_commands_page() -> str:
    """Render the page of the command line."""
    # A fixed width, independent of the current terminal.
    contexts = _iter_contexts(cli.make_context(cli.name, [], resilient_parsing=True, terminal_width=100))
    sections = (
        f"## `{one.command_path}`\n\n```text\n{_omit_common_options(one.get_help())}\n```\n" for one in contexts
    )
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
    at_start = kind is errors.ConfigError
    code, status = ("at start", "") if at_start else (f"{kind.code}", f"{http_status(kind)}")
    retryable = "yes" if kind.retryable else "no"
    return f"| `{kind.__name__}` | {code} | {status} | {retryable} | {_get_meaning(kind)} |\n"


def _get_meaning(kind: type[errors.RefdeskError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


async def _load_tools() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_desk(load(None, {}, {"data_dir": folder})) as desk:
            return [_complete_tool(tool, desk.registry.tools[tool["name"]]) for tool in await list_all_tools(desk)]


def _complete_tool(listed: Mapping[str, Any], tool: Any) -> dict[str, Any]:
    """Return a listed tool with its whole schemas."""
    result = {} if tool.output_schema is None else {"outputSchema": tool.output_schema}
    return {**complete_schema(listed, tool.input_schema), **result}


USUAL_HINTS = {"readOnlyHint": True, "openWorldHint": False}


def _render_tool(tool: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> str:
    """Render a tool's section, which refers to an earlier tool with the same arguments or result."""
    hints = [f"`{name}: {json.dumps(value)}`" for name, value in tool["annotations"].items()]
    notes = [] if tool["annotations"] == USUAL_HINTS else [f"Hints: {', '.join(hints)}."]
    if result := tool.get("outputSchema"):
        same = _find_equal(tool, earlier, "outputSchema")
        notes.append(f"Returns the fields of {same}." if same else f"Returns {_format_names(result)}.")
    if not tool["inputSchema"]["properties"]:
        arguments = "No arguments.\n"
    elif same := _find_equal(tool, earlier, "inputSchema"):
        arguments = f"Takes the arguments of {same}.\n"
    else:
        rows = (_render_argument_row(name, rule, tool["inputSchema"]) for name, rule in _list_properties(tool))
        arguments = "".join(["| Argument | Type | Default | Description |\n|---|---|---|---|\n", *rows])
    paragraphs = [f"## `{tool['name']}`", tool["description"], *([" ".join(notes)] if notes else []), arguments]
    return "\n\n".join(paragraphs)


def _find_equal(tool: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return a link to the first earlier tool with the same schema, or nothing."""
    names = (one["name"] for one in earlier if one.get(key) == tool[key])
    return next((f"[`{name}`](#{name})" for name in names), "")


def _format_names(schema: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in schema["properties"])


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
    for attribute in vars(metrics).values():
        metric = getattr(attribute, "metric", attribute)
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


COMMON_OPTIONS = ("-h, --help ", "--config FILE ", "--data DIR ", "--json ")


def _omit_common_options(help_text: str) -> str:
    """Return a command's help without the options that all commands share."""
    lines = [line for line in help_text.splitlines() if not line.strip().startswith(COMMON_OPTIONS)]
    return "\n".join(lines).removesuffix("Options:").rstrip()


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for page, render in PAGES.items():
        (folder / f"{page}.md").write_text(render(), "utf-8")
