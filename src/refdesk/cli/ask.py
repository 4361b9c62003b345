"""Commands that ask the desk something, in this process: no server is needed."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, Call
from refdesk.cli.failures import HINTS, say_why
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.search_results import found_in, shown
from refdesk.cli.settings import load_settings
from refdesk.cli.terminal import Ink, ink_for, printable
from refdesk.config import Config
from refdesk.errors import ERROR_META, UnknownTool

EVERYTHING = "all"
"""Who types a command means all there is, not the project of some client."""

USUAL_RESULTS = 5
"""As many as fit on a screen."""

MOST_OF_DOCUMENTATION = 20
"""Results that `search_documentation` gives at most."""


def search(arguments: Namespace) -> int:
    """`refdesk search`."""
    query = " ".join(arguments.query)
    tool, wanted = _search_asked(query, arguments)
    answer = asyncio.run(_call(load_settings(arguments), tool, wanted))
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    found = found_in(answer)
    ink = ink_for(sys.stdout)
    passages = (shown(number, one, query, ink) for number, one in enumerate(found, 1))
    print("\n\n".join(passages) if found else printable(answer.text))
    return 0


def ask(arguments: Namespace) -> int:
    """`refdesk ask`."""
    given = {
        "question": " ".join(arguments.question),
        "collection_id": arguments.collection or EVERYTHING,
        "model": arguments.model,
        "max_tokens": arguments.max_tokens,
    }
    answer = asyncio.run(_call(load_settings(arguments), "r2r_rag_query", _given(given)))
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    print(_answered(answer.structured, ink_for(sys.stdout)))
    return 0


def _search_asked(query: str, arguments: Namespace) -> tuple[str, dict[str, Any]]:
    """The documentation is searched unless it is asked for what only the knowledge base can do."""
    if not _is_special(arguments):
        given = {"query": query, "max_results": arguments.limit, "doc_type": arguments.doc_type}
        return "search_documentation", _given(given)
    given = {
        "query": query,
        "collection_id": arguments.collection or EVERYTHING,
        "filters": _filters(arguments.filter),
        "search_mode": arguments.mode,
        "limit": arguments.limit or USUAL_RESULTS,
    }
    return "r2r_search", _given(given)


def _is_special(arguments: Namespace) -> bool:
    many = (arguments.limit or 0) > MOST_OF_DOCUMENTATION
    asked = (arguments.collection, arguments.filter, arguments.mode)
    if arguments.doc_type is not None and any(asked):
        raise Misuse("--doc-type: not with --collection, --filter or --mode; use --collection")
    return many or any(asked)


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _filters(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        filters = json.loads(text)
    except ValueError as error:
        raise Misuse(f"--filter: must be JSON: {error}") from None
    if not isinstance(filters, dict):
        raise Misuse('--filter: must be an object such as {"metadata.team": {"$eq": "billing"}}')
    return filters


def _answered(answered: Mapping[str, Any], ink: Ink) -> str:
    """The answer, and below it what the numbers in it stand for."""
    parts = [printable(answered["answer"].strip())]
    if answered["sources"]:
        parts.append("\n".join([ink.bold("Sources"), *(_cited(source, ink) for source in answered["sources"])]))
    return "\n\n".join(parts)


def _cited(source: Mapping[str, Any], ink: Ink) -> str:
    return f"[{source['citation']}] {printable(source['document'])}  {ink.faint(printable(source['chunk_id']))}"


def call(arguments: Namespace) -> int:
    """`refdesk call`."""
    return print_answer(asyncio.run(_call_typed(load_settings(arguments), arguments)), arguments.json)


def tools(arguments: Namespace) -> int:
    """`refdesk tools`."""
    listing = asyncio.run(_list(load_settings(arguments)))
    if arguments.tool:
        listing = [tool for tool in listing if tool["name"] == arguments.tool]
        if not listing:
            raise UnknownTool(f"Unknown tool {arguments.tool!r}")
    if arguments.json:
        print(json.dumps(listing, indent=2, ensure_ascii=False))
    elif arguments.tool:
        print(_described(listing[0]))
    else:
        width = max(len(tool["name"]) for tool in listing)
        for tool in listing:
            print(f"{tool['name']:<{width}}  {tool['description']}")
    return 0


async def _call(config: Config, tool: str, arguments: Mapping[str, Any]) -> Answer:
    async with open_desk(config, servers=False) as desk:
        return await desk.call(tool, arguments)


async def _call_typed(config: Config, arguments: Namespace) -> Answer:
    async with open_desk(config, servers=False) as desk:
        schema = desk.input_schema(arguments.tool) or {}
        given = dict(_argument(text, schema) for text in arguments.arguments)
        return await desk.call(arguments.tool, given)


async def _list(config: Config) -> list[dict[str, Any]]:
    async with open_desk(config, servers=False) as desk:
        return await all_tools(desk)


async def all_tools(desk: Desk) -> list[dict[str, Any]]:
    """Every page of the list of tools, as the owner of this process sees it."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        page = (await desk.handle(Call(method="tools/list", params=params, caller=LOCAL))).result
        found += page["tools"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


def _argument(text: str, schema: Mapping[str, Any]) -> tuple[str, Any]:
    """`name=value`, where the schema says whether the value is text or JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Misuse(f"{text}: write it as name=value")
    rule = schema.get("properties", {}).get(name, {})
    kinds = {each.get("type") for each in rule.get("anyOf", [rule])}
    if kinds <= {None, "string"} or ("string" in kinds and not value.startswith("[")):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _described(tool: Mapping[str, Any]) -> str:
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
    """Print what a tool answered; the exit code tells whether it failed."""
    if as_json:
        print(json.dumps(answer.result, indent=2, ensure_ascii=False))
    elif answer.is_error:
        error = answer.result.get("_meta", {}).get(ERROR_META, {})
        say_why(answer.text.splitlines(), HINTS.get(error.get("type"), ""))
    else:
        print(printable(answer.text))
    return 1 if answer.is_error else 0
