"""Asking the desk: search, ask, its tools, and how well it finds what it should."""

from __future__ import annotations

from refdesk.cli.parser.arguments import Commands, as_json, collection, command, count, files, live


def add_to(commands: Commands) -> None:
    """Put these commands into the grammar."""
    for add in (_search, _ask, _tools, _call, _eval):
        add(commands)


def _search(commands: Commands) -> None:
    search = command(commands, "search", "search the documentation", "refdesk.cli.ask:search")
    search.add_argument("query", nargs="+", help="question or keywords")
    collection(search, "collection to search (default all)")
    live(search.add_argument("--doc-type", help="documentation set to search (default all)"), "collections")
    search.add_argument("--filter", metavar="JSON", help='such as \'{"metadata.team": {"$eq": "billing"}}\'')
    search.add_argument(
        "--mode", choices=["basic", "advanced"], help="basic: by meaning alone; advanced: by words too (default)"
    )
    search.add_argument(
        "--limit", "--max-results", dest="limit", type=count, metavar="N", help="how many passages (default 5)"
    )
    as_json(search)


def _ask(commands: Commands) -> None:
    ask = command(commands, "ask", "answer a question, with sources", "refdesk.cli.ask:ask")
    ask.add_argument("question", nargs="+", help="what you want to know")
    collection(ask, "collection to answer from (default all)")
    ask.add_argument("--model", help="model to write the answer, where one is configured")
    ask.add_argument("--max-tokens", type=count, metavar="N", help="how long the answer may be (default 500)")
    as_json(ask)


def _tools(commands: Commands) -> None:
    tools = command(commands, "tools", "list the tools, or describe one", "refdesk.cli.ask:tools")
    live(tools.add_argument("tool", nargs="?", help="a tool's name"), "tools")
    as_json(tools)


def _call(commands: Commands) -> None:
    call = command(commands, "call", "call a tool", "refdesk.cli.ask:call")
    live(call.add_argument("tool", help="the tool's name; `refdesk tools` lists them"), "tools")
    call.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="arguments, as `refdesk tools TOOL` shows them"
    )
    as_json(call)


def _eval(commands: Commands) -> None:
    evaluate = command(commands, "eval", "measure how well search finds what it should", "refdesk.cli.eval:evaluate")
    files(evaluate.add_argument("queries", metavar="QUERIES.jsonl", help="one query a line, with what answers it"))
    qrels = evaluate.add_argument(
        "--qrels", metavar="FILE.tsv", help="what answers the queries, where that is a file of its own"
    )
    files(qrels)
    collection(evaluate, "collection to search (default all)")
    evaluate.add_argument(
        "--tool",
        choices=["search_documentation", "r2r_search"],
        help="tool to search with (default search_documentation; r2r_search with --qrels)",
    )
    as_json(evaluate)
