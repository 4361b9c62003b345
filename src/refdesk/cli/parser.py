"""The grammar of the command line. Imports nothing that a command does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from refdesk.version import __version__

DESCRIPTION = "The reference desk for LLM agents: find, read and serve a team's documentation over MCP."

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Actions: TypeAlias = "argparse._SubParsersAction[_ParserBeforeDashes]"


def build_parser() -> argparse.ArgumentParser:
    """The parser for all commands."""
    parser = argparse.ArgumentParser("refdesk", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"refdesk {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_serve, _add, _search, _ask, _read, _convert, _documents, _collections, _tools, _call):
        add(commands)
    for add in (_servers, _check, _keys, _eval, _reindex, _reference):
        add(commands)
    return parser


def _serve(commands: Commands) -> None:
    serve = _command(commands, "serve", "run the server", "refdesk.cli.serve:serve")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8001; 0 for any free one)")
    serve.add_argument("--workers", type=int, help="number of processes (default 1)")
    serve.add_argument("--toolsets", help="toolsets to offer, set apart by commas (default all of them)")
    serve.add_argument("--stdio", action="store_true", help="serve one client on standard input and output")
    serve.add_argument(
        "--allow-anonymous", action="store_true", default=None, help="let other machines in without keys"
    )


def _add(commands: Commands) -> None:
    add = _command(commands, "add", "bring documents in, to be searched", "refdesk.cli.add:add")
    add.add_argument(
        "sources",
        nargs="+",
        metavar="FILE|FOLDER|URL|-",
        help="what to bring in; - is text on standard input, a .jsonl file holds one document a line",
    )
    _collection(add, "collection to bring it into, made if need be (default the folder's name)")
    add.add_argument("--version", metavar="VERSION", default="", help="version of what the documents describe")
    add.add_argument("--title", help="title of the text on standard input")
    add.add_argument(
        "--metadata", action="append", default=[], metavar="NAME=VALUE", help="to filter by; may be given several times"
    )
    add.add_argument(
        "--ignore", action="append", default=[], metavar="PATTERN", help="files to leave out, as .gitignore names them"
    )
    until = add.add_mutually_exclusive_group()
    until.add_argument("--watch", action="store_true", help="keep the collection in step with the folder until Ctrl-C")
    until.add_argument("--no-wait", action="store_true", help="do not wait until all of it can be found")
    _json(add)


def _search(commands: Commands) -> None:
    search = _command(commands, "search", "search the documentation", "refdesk.cli.ask:search")
    search.add_argument("query", nargs="+", help="question or keywords")
    _collection(search, "collection to search (default all)")
    search.add_argument("--doc-type", help="documentation set to search (default all)")
    search.add_argument("--filter", metavar="JSON", help='such as \'{"metadata.team": {"$eq": "billing"}}\'')
    search.add_argument(
        "--mode", choices=["basic", "advanced"], help="basic: by meaning alone; advanced: by words too (default)"
    )
    search.add_argument(
        "--limit", "--max-results", dest="limit", type=int, metavar="N", help="how many passages (default 5)"
    )
    _json(search)


def _ask(commands: Commands) -> None:
    ask = _command(commands, "ask", "answer a question, with sources", "refdesk.cli.ask:ask")
    ask.add_argument("question", nargs="+", help="what you want to know")
    _collection(ask, "collection to answer from (default all)")
    ask.add_argument("--model", help="model to write the answer, where one is configured")
    ask.add_argument("--max-tokens", type=int, metavar="N", help="how long the answer may be (default 500)")
    _json(ask)


def _read(commands: Commands) -> None:
    read = _command(commands, "read", "read a document in parts", "refdesk.cli.read:read")
    read.add_argument("document", metavar="DOCUMENT", help="a file, a URL, a handle or a document's id")
    part = read.add_mutually_exclusive_group()
    part.add_argument("--section", metavar="ID", help="read this section")
    part.add_argument("--pages", metavar="N[-M]", help="read these pages")
    part.add_argument("--find", metavar="WORDS", help="find passages in it")
    read.add_argument("--cursor", help="go on where the last answer stopped")
    _json(read)


def _convert(commands: Commands) -> None:
    convert = _command(commands, "convert", "convert files, folders or web pages", "refdesk.cli.convert:convert")
    convert.add_argument("sources", nargs="+", metavar="FILE|FOLDER|URL", help="what to convert")
    convert.add_argument(
        "--to", choices=["markdown", "html", "json"], default="markdown", help="form to write (default markdown)"
    )
    convert.add_argument("-o", "--output", metavar="PATH", help="file to write, or folder for several (default stdout)")
    convert.add_argument("--pages", metavar="N[-M]", help="only these pages of a PDF")
    _json(convert)


def _documents(commands: Commands) -> None:
    documents = _command(commands, "documents", "list the documents, or remove some", "refdesk.cli.holdings:documents")
    documents.add_argument(
        "action", nargs="?", choices=["list", "remove"], default="list", help="what to do (default list)"
    )
    documents.add_argument("ids", nargs="*", metavar="ID", help="documents to remove")
    _collection(documents, "only those of this collection")
    documents.add_argument(
        "--status",
        choices=["pending", "success", "failed", "all"],
        default="all",
        help="only those so far (default all)",
    )
    _json(documents)


def _collections(commands: Commands) -> None:
    collections = _command(
        commands, "collections", "list the collections, make or remove one", "refdesk.cli.holdings:collections"
    )
    collections.add_argument(
        "action", nargs="?", choices=["list", "create", "remove"], default="list", help="what to do (default list)"
    )
    collections.add_argument(
        "names", nargs="*", metavar="NAME", help="collections to make, or to remove with all they hold"
    )
    collections.add_argument("--description", default="", help="what a new collection holds")
    collections.add_argument("--version", metavar="VERSION", default="", help="version of what it describes")
    _json(collections)


def _tools(commands: Commands) -> None:
    tools = _command(commands, "tools", "list the tools, or describe one", "refdesk.cli.ask:tools")
    tools.add_argument("tool", nargs="?", help="a tool's name")
    _json(tools)


def _call(commands: Commands) -> None:
    call = _command(commands, "call", "call a tool", "refdesk.cli.ask:call")
    call.add_argument("tool", help="the tool's name; `refdesk tools` lists them")
    call.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="arguments, as `refdesk tools TOOL` shows them"
    )
    _json(call)


def _check(commands: Commands) -> None:
    check = _command(commands, "check", "check the configuration", "refdesk.cli.check:check")
    check.add_argument("--show", action="store_true", help="print every setting with its value and source")
    _json(check)


def _eval(commands: Commands) -> None:
    command = _command(commands, "eval", "measure how well search finds what it should", "refdesk.cli.eval:evaluate")
    command.add_argument("queries", metavar="QUERIES.jsonl", help="one query a line, with what answers it")
    command.add_argument(
        "--qrels", metavar="FILE.tsv", help="what answers the queries, where that is a file of its own"
    )
    _collection(command, "collection to search (default all)")
    command.add_argument(
        "--tool",
        choices=["search_documentation", "r2r_search"],
        help="tool to search with (default search_documentation; r2r_search with --qrels)",
    )
    _json(command)


def _keys(commands: Commands) -> None:
    keys = _command(commands, "keys", "list the API keys, make or revoke one", "refdesk.cli.keys:keys")
    keys.add_argument(
        "action", nargs="?", choices=["list", "make", "revoke"], default="list", help="what to do (default list)"
    )
    keys.add_argument("name", nargs="?", metavar="NAME", help="what people call the key")
    keys.add_argument("--tenant", help="tenant whose documents a new key opens (default default)")
    keys.add_argument("--user", help="user who calls with it (default its name)")
    keys.add_argument(
        "--role", action="append", default=[], metavar="ROLE", help="reader, writer, service or admin (default none)"
    )
    keys.add_argument(
        "--toolset", action="append", default=[], metavar="TOOLSET", help="toolset that it opens (default all)"
    )
    keys.add_argument(
        "--server", action="append", default=[], metavar="PATTERN",
        help="server behind the desk that it opens, such as github or github__get_*; may be given again (default all)",
    )  # fmt: skip
    keys.add_argument("--expires", metavar="WHEN", help="such as 90d, 12h or 2027-01-31 (default never)")
    _json(keys)


def _servers(commands: Commands) -> None:
    target = "refdesk.cli.servers:servers"
    servers = _command(commands, "servers", "list the MCP servers behind the desk, add or change them", target)
    _json(servers)
    servers.set_defaults(action="list")
    actions = servers.add_subparsers(title="actions", metavar="ACTION", parser_class=_ParserBeforeDashes)
    _server_action(actions, "list", "list the servers, and how they are when a desk runs")
    _add_server(actions)
    for action, summary in (
        ("remove", "forget a server"),
        ("enable", "switch a server on"),
        ("disable", "switch a server off"),
        ("test", "connect to a server and say what it offers"),
    ):
        _named_server(_server_action(actions, action, summary))
    _import_servers(actions)
    logs = _server_action(actions, "logs", "show what a server wrote on standard error")
    _named_server(logs)
    logs.add_argument("--lines", type=int, default=50, metavar="N", help="how many of the last lines (default 50)")
    approve = _server_action(actions, "approve", "show tools that changed behind your back, and let them be used")
    approve.add_argument("name", nargs="?", metavar="NAME", help="the server (default all, to be shown)")
    approve.add_argument("tool", nargs="?", metavar="TOOL", help="one of its tools (default all that wait)")
    approve.add_argument("--yes", action="store_true", help="do not ask")
    approve.add_argument("--reject", action="store_true", help="refuse them, until they change again")


def _add_server(actions: Actions) -> None:
    add = _server_action(actions, "add", "add a server: a command after --, or an address")
    add.takes_command = True
    add.usage = "refdesk servers add [options] NAME (URL | -- COMMAND [ARGUMENT ...])"
    _named_server(add)
    add.add_argument("url", nargs="?", metavar="URL", help="its address, when it is no command")
    add.add_argument("--type", choices=["stdio", "http", "sse", "websocket"], help="transport (default by the address)")
    add.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable for it")
    add.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="HTTP header to send")
    add.add_argument("--cwd", metavar="DIR", help="folder to start it in")
    add.add_argument("--docs", metavar="TOOL[:ARGUMENT]", help="search tool, to take part in search_documentation")
    add.add_argument("--short", action="store_true", help="connect anew for each operation")
    add.add_argument("--replace", action="store_true", help="take the place of a server of this name")


def _import_servers(actions: Actions) -> None:
    command = _server_action(actions, "import", "take over the servers of other MCP clients")
    command.add_argument("file", nargs="?", metavar="FILE", help="the client's file (default all that are found)")
    command.add_argument("--from", dest="client", metavar="CLIENT", help="such as claude-desktop, cursor or vscode")
    command.add_argument("--only", action="append", default=[], metavar="NAME", help="only this server")
    command.add_argument("--replace", action="store_true", help="also where there is another server of the same name")
    command.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _server_action(actions: Actions, name: str, summary: str) -> _ParserBeforeDashes:
    action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    # What was given before the action is not to be forgotten for want of it after.
    action.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="configuration file")
    action.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="folder for data")
    action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    action.set_defaults(action=name)
    return action


def _named_server(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="the server's name")


class _ParserBeforeDashes(argparse.ArgumentParser):
    """Leaves what follows `--` alone, where that is a command line of its own, whose options are not ours."""

    takes_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or ())
        ours = words.index("--") if self.takes_command and "--" in words else len(words)
        known, unknown = super().parse_known_args(words[:ours], namespace)
        if self.takes_command and known.url is None and len(unknown) == 1 and not unknown[0].startswith("-"):
            # Options between two words make argparse take the second for one too many.
            known.url = unknown.pop()
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        known.command = words[ours + 1 :]
        return known, []


def _reindex(commands: Commands) -> None:
    reindex = _command(
        commands, "reindex", "build the search indexes anew from what is stored", "refdesk.cli.holdings:reindex"
    )
    _json(reindex)


def _reference(commands: Commands) -> None:
    reference = _command(commands, "reference", "print the reference pages", "refdesk.cli.reference:reference")
    reference.add_argument("page", nargs="?", choices=["settings", "tools", "errors", "metrics", "cli"])
    reference.add_argument("--write", metavar="DIR", help="write every page into this folder")


def _command(commands: Commands, name: str, summary: str, target: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    command.add_argument("--config", metavar="FILE", help="configuration file (default ./refdesk.yaml)")
    command.add_argument("--data", metavar="DIR", help="folder for data (default the platform's user data folder)")
    command.set_defaults(run=_lazily(target))
    return command


def _collection(command: argparse.ArgumentParser, meaning: str) -> None:
    command.add_argument("--collection", metavar="NAME", help=meaning)


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _lazily(target: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        module, _, name = target.partition(":")
        code: int = getattr(import_module(module), name)(arguments)
        return code

    return run
