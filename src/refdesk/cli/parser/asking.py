"""Arguments of search, ask, tools, call and eval."""

from __future__ import annotations

import click

from refdesk.cli.parser.arguments import JSON, Count, argument, collection, command, list_files, list_live, option

COMMANDS = [
    command(
        "search",
        "Search the documentation",
        "refdesk.cli.ask:search",
        argument("query", "Question or keywords", nargs=-1, required=True),
        collection("Collection to search  [default: all]"),
        option(
            "--doc-type",
            metavar="NAME",
            help="Documentation set to search  [default: all]",
            shell_complete=list_live("collections"),
        ),
        option("--filter", metavar="JSON", help='Filter, such as \'{"metadata.team": {"$eq": "billing"}}\''),
        option(
            "--mode",
            type=click.Choice(["basic", "advanced"]),
            help="Semantic search only (basic), or full-text and semantic (advanced)  [default: advanced]",
        ),
        option("--limit", "--max-results", "limit", type=Count(), metavar="N", help="Number of results  [default: 5]"),
        JSON,
    ),
    command(
        "ask",
        "Answer a question, with sources",
        "refdesk.cli.ask:ask",
        argument("question", "Your question", nargs=-1, required=True),
        collection("Collection to answer from  [default: all]"),
        option("--model", metavar="NAME", help="Model that writes the answer, if one is configured"),
        option("--max-tokens", type=Count(), metavar="N", help="Maximum length of the answer  [default: 500]"),
        JSON,
    ),
    command(
        "tools",
        "List the tools, or describe one",
        "refdesk.cli.ask:tools",
        argument("tool", "Name of a tool", required=False, shell_complete=list_live("tools")),
        JSON,
    ),
    command(
        "call",
        "Call a tool",
        "refdesk.cli.ask:call",
        argument("tool", "Name of the tool; `refdesk tools` lists them", shell_complete=list_live("tools")),
        argument("arguments", "Arguments, as shown by `refdesk tools TOOL`", nargs=-1, metavar="[NAME=VALUE]..."),
        JSON,
    ),
    command(
        "eval",
        "Measure search quality",
        "refdesk.cli.eval:evaluate",
        argument(
            "queries", "Queries, one per line, with their answers", metavar="QUERIES.jsonl", shell_complete=list_files
        ),
        option(
            "--qrels", metavar="FILE.tsv", help="Relevance judgments in a file of their own", shell_complete=list_files
        ),
        collection("Collection to search  [default: all]"),
        option(
            "--tool",
            type=click.Choice(["search_documentation", "r2r_search"]),
            help="Tool to search with  [default: search_documentation, or r2r_search with --qrels]",
        ),
        JSON,
    ),
]
