"""Arguments of search, ask, tools, call and eval."""

from __future__ import annotations

from refdesk.cli.parser.arguments import (
    Commands,
    add_collection_option,
    add_command,
    add_json_option,
    complete_files,
    complete_with,
    parse_count,
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    for add in (_add_search, _add_ask, _add_tools, _add_call, _add_eval):
        add(commands)


def _add_search(commands: Commands) -> None:
    search = add_command(commands, "search", "search the documentation", "refdesk.cli.ask:search")
    search.add_argument("query", nargs="+", help="question or keywords")
    add_collection_option(search, "collection to search (default all)")
    complete_with(search.add_argument("--doc-type", help="documentation set to search (default all)"), "collections")
    search.add_argument("--filter", metavar="JSON", help='such as \'{"metadata.team": {"$eq": "billing"}}\'')
    search.add_argument(
        "--mode", choices=["basic", "advanced"], help="basic: by meaning alone; advanced: by words too (default)"
    )
    search.add_argument(
        "--limit", "--max-results", dest="limit", type=parse_count, metavar="N", help="how many passages (default 5)"
    )
    add_json_option(search)


def _add_ask(commands: Commands) -> None:
    ask = add_command(commands, "ask", "answer a question, with sources", "refdesk.cli.ask:ask")
    ask.add_argument("question", nargs="+", help="what you want to know")
    add_collection_option(ask, "collection to answer from (default all)")
    ask.add_argument("--model", help="model to write the answer, where one is configured")
    ask.add_argument("--max-tokens", type=parse_count, metavar="N", help="how long the answer may be (default 500)")
    add_json_option(ask)


def _add_tools(commands: Commands) -> None:
    tools = add_command(commands, "tools", "list the tools, or describe one", "refdesk.cli.ask:tools")
    complete_with(tools.add_argument("tool", nargs="?", help="a tool's name"), "tools")
    add_json_option(tools)


def _add_call(commands: Commands) -> None:
    call = add_command(commands, "call", "call a tool", "refdesk.cli.ask:call")
    complete_with(call.add_argument("tool", help="the tool's name; `refdesk tools` lists them"), "tools")
    call.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="arguments, as `refdesk tools TOOL` shows them"
    )
    add_json_option(call)


def _add_eval(commands: Commands) -> None:
    evaluate = add_command(
        commands, "eval", "measure how well search finds what it should", "refdesk.cli.eval:evaluate"
    )
    complete_files(
        evaluate.add_argument("queries", metavar="QUERIES.jsonl", help="one query a line, with what answers it")
    )
    qrels = evaluate.add_argument(
        "--qrels", metavar="FILE.tsv", help="what answers the queries, where that is a file of its own"
    )
    complete_files(qrels)
    add_collection_option(evaluate, "collection to search (default all)")
    evaluate.add_argument(
        "--tool",
        choices=["search_documentation", "r2r_search"],
        help="tool to search with (default search_documentation; r2r_search with --qrels)",
    )
    add_json_option(evaluate)
