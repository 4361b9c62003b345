"""`refdesk search`, `ask`, `read`, `tools` and `call`: tool calls in this process, without a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refdesk.app import Desk
from refdesk.calls import LOCAL, Answer, Call
from refdesk.cli.arguments import Misuse
from refdesk.cli.convert import open_file, parse_page_range
from refdesk.cli.error_report import HINTS, print_failure
from refdesk.cli.load_config import open_local_desk
from refdesk.cli.terminal import TerminalStyle, detect_style, print_json, sanitize
from refdesk.documents.conversions import ConversionOptions, unheard
from refdesk.errors import ERROR_META, UnknownTool
from refdesk.ingest.sources import is_url
from refdesk.tools.documentation import DocumentationHit

ALL_COLLECTIONS = "all"
"""Commands search all collections by default, not those of a client's project."""

DEFAULT_LIMIT = 5
"""Default number of results: about one screen."""

MAX_DOCUMENTATION_RESULTS = 20
"""Result limit of `search_documentation`."""


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A matching passage and its source."""

    document_id: str
    text: str
    score: float
    metadata: Mapping[str, Any]

    @property
    def anchors(self) -> frozenset[str]:
        """Anchors of the sections that contain the passage."""
        return frozenset(filter(None, self.metadata.get("anchors") or [self.metadata.get("anchor")]))

    @property
    def heading(self) -> str:
        """Heading path of the passage, or its document's title."""
        path = self.metadata.get("path") or self.metadata.get("section") or self.metadata.get("title") or ""
        return path if isinstance(path, str) else " › ".join(path)

    @property
    def source(self) -> str:
        """Document id with anchor, page, version and index date."""
        metadata = self.metadata
        anchor = f"#{metadata['anchor']}" if metadata.get("anchor") else ""
        page = f", page {metadata['page']}" if metadata.get("page") else ""
        version = f", version {metadata['version']}" if metadata.get("version") else ""
        indexed = f", indexed {metadata['indexed_at'][:10]}" if metadata.get("indexed_at") else ""
        return f"{self.document_id}{anchor}{page}{version}{indexed}"


def parse_hits(answer: Answer) -> list[PassageHit]:
    """Return the hits in an answer of `r2r_search` or `search_documentation`, best first."""
    if answer.structured is not None:
        results = answer.structured["results"]
        return [PassageHit(one["document_id"], one["text"], one["score"], one["metadata"]) for one in results]
    found = map(DocumentationHit.from_item, answer.result["content"])
    return [
        PassageHit(hit.metadata["source"], hit.text, hit.score, {**hit.metadata, "path": hit.heading})
        for hit in found
        if hit is not None and hit.score is not None
    ]


def format_hit(number: int, hit: PassageHit, query: str, style: TerminalStyle) -> str:
    """Format a hit with heading and source, highlighting the query's words."""
    heading = style.bold(sanitize(f"{number}. {hit.heading}"))
    foot = style.faint(sanitize(f"{hit.source}, score {hit.score:.2f}"))
    return f"{heading}\n{style.highlight(sanitize(hit.text.strip()), query)}\n{foot}"


async def search(arguments: SimpleNamespace) -> int:
    """Run `refdesk search`: with `search_documentation`, unless an option needs `r2r_search`."""
    query = " ".join(arguments.query)
    has_r2r_options = any((arguments.collection, arguments.filter, arguments.mode))
    if arguments.doc_type is not None and has_r2r_options:
        raise Misuse("--doc-type: cannot be used with --collection, --filter or --mode")
    if not has_r2r_options and (arguments.limit or 0) <= MAX_DOCUMENTATION_RESULTS:
        given = {"query": query, "max_results": arguments.limit, "doc_type": arguments.doc_type}
        answer = await _call(arguments, "search_documentation", given)
    else:
        given = {
            "query": query,
            "collection_id": arguments.collection or ALL_COLLECTIONS,
            "filters": _parse_filters(arguments.filter),
            "search_mode": arguments.mode,
            "limit": arguments.limit or DEFAULT_LIMIT,
        }
        answer = await _call(arguments, "r2r_search", given)
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    hits = parse_hits(answer)
    style = detect_style(sys.stdout)
    passages = (format_hit(number, hit, query, style) for number, hit in enumerate(hits, 1))
    print("\n\n".join(passages) if hits else sanitize(answer.text))
    return 0


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


async def ask(arguments: SimpleNamespace) -> int:
    """Run `refdesk ask`: print the answer, followed by its numbered sources."""
    given = {
        "question": " ".join(arguments.question),
        "collection_id": arguments.collection or ALL_COLLECTIONS,
        "model": arguments.model,
        "max_tokens": arguments.max_tokens,
    }
    answer = await _call(arguments, "r2r_rag_query", given)
    if answer.is_error or arguments.json:
        return print_answer(answer, arguments.json)
    style = detect_style(sys.stdout)
    print(sanitize(answer.structured["answer"].strip()))
    if sources := answer.structured["sources"]:
        print(f"\n{style.bold('Sources')}")
    for one in sources:
        print(f"[{one['citation']}] {sanitize(one['document'])}  {style.faint(sanitize(one['chunk_id']))}")
    return 0


async def _call(arguments: SimpleNamespace, tool: str, given: Mapping[str, Any]) -> Answer:
    async with open_local_desk(arguments) as desk:
        return await desk.call(tool, {name: value for name, value in given.items() if value is not None})


async def read(arguments: SimpleNamespace) -> int:
    """Run `refdesk read`: read a file, a URL, a converted document or an indexed document in parts."""
    doc_id, file = arguments.document, Path(arguments.document)
    async with open_local_desk(arguments) as desk:
        if is_url(doc_id):
            doc_id = (await desk.conversions.convert_url(LOCAL.tenant, doc_id, ConversionOptions(), unheard)).handle
        elif file.is_file():  # noqa: ASYNC240 - nothing else runs on this loop
            with open_file(file) as opened:
                doc_id = (await desk.conversions.convert(LOCAL.tenant, opened, ConversionOptions(), unheard)).handle
        tool, given = _choose_reader(arguments)
        answer = await desk.call(tool, {"doc_id": doc_id, **given})
    return print_answer(answer, arguments.json)


def _choose_reader(arguments: SimpleNamespace) -> tuple[str, dict[str, Any]]:
    cursor = {"cursor": arguments.cursor} if arguments.cursor else {}
    if arguments.section:
        return "read_doc_section", {"section_id": arguments.section, **cursor}
    if arguments.find:
        return "doc_local_search", {"query": arguments.find}
    pages = parse_page_range(arguments.pages)
    if pages is not None:
        return "read_doc_pages", {"page_start": pages.first, "page_end": pages.last, **cursor}
    return "read_doc_metadata", {}


async def call(arguments: SimpleNamespace) -> int:
    """Run `refdesk call`."""
    async with open_local_desk(arguments) as desk:
        schema = desk.dispatcher.input_schema(arguments.tool) or {}
        given = dict(_parse_argument(text, schema) for text in arguments.arguments)
        answer = await desk.call(arguments.tool, given)
    return print_answer(answer, arguments.json)


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


async def tools(arguments: SimpleNamespace) -> None:
    """Run `refdesk tools`."""
    async with open_local_desk(arguments) as desk:
        schemas = {name: tool.input_schema for name, tool in desk.registry.tools.items()}
        listing = [complete_schema(tool, schemas[tool["name"]]) for tool in await list_all_tools(desk)]
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
