"""`refdesk search`, `ask`, `tools` and `call`: tool calls in this process, without a server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, Call
from refdesk.cli.arguments import Misuse
from refdesk.cli.error_report import HINTS, print_failure
from refdesk.cli.load_config import load_settings
from refdesk.cli.search_results import format_hit, parse_hits
from refdesk.cli.terminal import TerminalStyle, detect_style, print_json, sanitize
from refdesk.errors import ERROR_META, UnknownTool

ALL_COLLECTIONS = "all"
"""Commands search all collections by default, not those of a client's project."""

DEFAULT_LIMIT = 5
"""Default number of results: about one screen."""

MAX_DOCUMENTATION_RESULTS = 20
"""Result limit of `search_documentation`."""


def search(arguments: SimpleNamespace) -> int:
    """Run `refdesk search`."""
    query = " ".join(arguments.query)
    tool, tool_arguments = _choose_search_tool(query, arguments)
    answer = asyncio.run(_call(arguments, tool, tool_arguments))
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    hits = parse_hits(answer)
    style = detect_style(sys.stdout)
    passages = (format_hit(number, hit, query, style) for number, hit in enumerate(hits, 1))
    print("\n\n".join(passages) if hits else sanitize(answer.text))
    return 0


def ask(arguments: SimpleNamespace) -> int:
    """Run `refdesk ask`."""
    tool_arguments = {
        "question": " ".join(arguments.question),
        "collection_id": arguments.collection or ALL_COLLECTIONS,
        "model": arguments.model,
        "max_tokens": arguments.max_tokens,
    }
    answer = asyncio.run(_call(arguments, "r2r_rag_query", tool_arguments))
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    print(_format_answer(answer.structured, detect_style(sys.stdout)))
    return 0


def _choose_search_tool(query: str, arguments: SimpleNamespace) -> tuple[str, dict[str, Any]]:
    """Return the search tool and its arguments: `search_documentation` unless an option needs `r2r_search`."""
    has_r2r_options = any((arguments.collection, arguments.filter, arguments.mode))
    if arguments.doc_type is not None and has_r2r_options:
        raise Misuse("--doc-type: cannot be used with --collection, --filter or --mode")
    if not has_r2r_options and (arguments.limit or 0) <= MAX_DOCUMENTATION_RESULTS:
        tool_arguments = {"query": query, "max_results": arguments.limit, "doc_type": arguments.doc_type}
        return "search_documentation", tool_arguments
    return "r2r_search", {
        "query": query,
        "collection_id": arguments.collection or ALL_COLLECTIONS,
        "filters": _parse_filters(arguments.filter),
        "search_mode": arguments.mode,
        "limit": arguments.limit or DEFAULT_LIMIT,
    }


def _parse_filters(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        filters = json.loads(text)
    except ValueError as error:
        raise Misuse(f"--filter: must be JSON: {error}") from None
    if not isinstance(filters, dict):
        raise Misuse('--filter: must be an object such as {"metadata.team": {"$eq": "billing"}}')
    return filters


def _format_answer(structured: Mapping[str, Any], style: TerminalStyle) -> str:
    """Format an answer, followed by its numbered sources."""
    parts = [sanitize(structured["answer"].strip())]
    sources = [
        f"[{source['citation']}] {sanitize(source['document'])}  {style.faint(sanitize(source['chunk_id']))}"
        for source in structured["sources"]
    ]
    if sources:
        parts.append("\n".join([style.bold("Sources"), *sources]))
    return "\n\n".join(parts)


def call(arguments: SimpleNamespace) -> int:
    """Run `refdesk call`."""
    return print_answer(asyncio.run(_call_with_schema(arguments)), arguments.json)


def tools(arguments: SimpleNamespace) -> int:
    """Run `refdesk tools`."""
    listing = asyncio.run(_list_tools(arguments))
    if arguments.tool:
        listing = [tool for tool in listing if tool["name"] == arguments.tool]
        if not listing:
            raise UnknownTool(f"Unknown tool {arguments.tool!r}")
    if arguments.json:
        print_json(listing)
    elif arguments.tool:
        print(_format_tool(listing[0]))
    else:
        width = max(len(tool["name"]) for tool in listing)
        for tool in listing:
            print(f"{tool['name']:<{width}}  {tool['description']}")
    return 0


async def _call(arguments: SimpleNamespace, tool: str, tool_arguments: Mapping[str, Any]) -> Answer:
    async with open_desk(load_settings(arguments), servers=False) as desk:
        return await desk.call(tool, {name: value for name, value in tool_arguments.items() if value is not None})


async def _call_with_schema(arguments: SimpleNamespace) -> Answer:
    async with open_desk(load_settings(arguments), servers=False) as desk:
        schema = desk.input_schema(arguments.tool) or {}
        tool_arguments = dict(_parse_argument(text, schema) for text in arguments.arguments)
        return await desk.call(arguments.tool, tool_arguments)


async def _list_tools(arguments: SimpleNamespace) -> list[dict[str, Any]]:
    async with open_desk(load_settings(arguments), servers=False) as desk:
        tools = desk.registry.tools
        return [complete_schema(tool, tools[tool["name"]].input_schema) for tool in await list_all_tools(desk)]


async def list_all_tools(desk: Desk) -> list[dict[str, Any]]:
    """Return every page of `tools/list`, as the local caller sees it."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        page = (await desk.handle(Call(method="tools/list", params=params, caller=LOCAL))).result
        found += page["tools"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


def complete_schema(tool: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a listed tool with its whole input schema. The list has the current choices, but not all limits."""
    listed = tool["inputSchema"].get("properties", {})
    properties = {name: {**listed.get(name, {}), **rule} for name, rule in schema.get("properties", {}).items()}
    return {**tool, "inputSchema": {**schema, "properties": properties}}


def _parse_argument(text: str, schema: Mapping[str, Any]) -> tuple[str, Any]:
    """Parse `name=value`. The tool's schema decides whether the value is text or JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Misuse(f"{text}: arguments have the form name=value")
    rule = schema.get("properties", {}).get(name, {})
    kinds = {each.get("type") for each in rule.get("anyOf", [rule])}
    if kinds <= {None, "string"} or ("string" in kinds and not value.startswith("[")):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _format_tool(tool: Mapping[str, Any]) -> str:
    schema = tool["inputSchema"]
    lines = [f"{tool['name']}: {tool['title']}", "", tool["description"], "", "Arguments:"]
    for name, rule in schema["properties"].items():
        notes = [str(rule.get("type", "any"))]
        notes += ["required"] if name in schema.get("required", ()) else []
        notes += [f"default {rule['default']!r}"] if "default" in rule else []
        notes += [f"one of {', '.join(rule['enum'])}"] if "enum" in rule else []
        notes += [f"from {rule['minimum']} to {rule['maximum']}"] if "minimum" in rule and "maximum" in rule else []
        lines.append(f"  {name} ({', '.join(notes)})  {rule.get('description', '')}".rstrip())
    return "\n".join(lines)


def print_answer(answer: Answer, as_json: bool) -> int:
    """Print a tool's result and return the exit code."""
    if as_json:
        print_json(answer.result)
    elif answer.is_error:
        error = answer.result.get("_meta", {}).get(ERROR_META, {})
        print_failure(answer.text.splitlines(), HINTS.get(error.get("type"), ""))
    else:
        print(sanitize(answer.text))
    return 1 if answer.is_error else 0
