"""The grammar of the command line. Imports nothing that a command does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from refdesk.version import __version__

DESCRIPTION = "The reference desk for LLM agents: find, read and serve a team's documentation over MCP."


def build_parser() -> argparse.ArgumentParser:
    """The parser for all commands."""
    parser = argparse.ArgumentParser("refdesk", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"refdesk {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = _command(commands, "serve", "run the server", "refdesk.cli.serve:serve")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8001; 0 for any free one)")
    serve.add_argument("--workers", type=int, help="number of processes (default 1)")
    serve.add_argument("--toolsets", help="toolsets to offer, set apart by commas (default docs,reader,convert)")
    serve.add_argument("--stdio", action="store_true", help="serve one client on standard input and output")
    serve.add_argument(
        "--allow-anonymous", action="store_true", default=None, help="let other machines in without keys"
    )

    search = _command(commands, "search", "search the documentation", "refdesk.cli.ask:search")
    search.add_argument("query", nargs="+", help="question or keywords")
    search.add_argument("--max-results", type=int, help="how many passages (default 5)")
    search.add_argument("--doc-type", help="documentation set to search (default all)")
    _json(search)

    convert = _command(commands, "convert", "convert files, folders or web pages", "refdesk.cli.convert:convert")
    convert.add_argument("sources", nargs="+", metavar="FILE|FOLDER|URL", help="what to convert")
    convert.add_argument(
        "--to", choices=["markdown", "html", "json"], default="markdown", help="form to write (default markdown)"
    )
    convert.add_argument("-o", "--output", metavar="PATH", help="file to write, or folder for several (default stdout)")
    convert.add_argument("--pages", metavar="N[-M]", help="only these pages of a PDF")
    _json(convert)

    read = _command(commands, "read", "read a document in parts", "refdesk.cli.read:read")
    read.add_argument("document", metavar="DOCUMENT", help="a file, a URL, a handle or a document's id")
    part = read.add_mutually_exclusive_group()
    part.add_argument("--section", metavar="ID", help="read this section")
    part.add_argument("--pages", metavar="N[-M]", help="read these pages")
    part.add_argument("--find", metavar="WORDS", help="find passages in it")
    read.add_argument("--cursor", help="go on where the last answer stopped")
    _json(read)

    tools = _command(commands, "tools", "list the tools, or describe one", "refdesk.cli.ask:tools")
    tools.add_argument("tool", nargs="?", help="a tool's name")
    _json(tools)

    call = _command(commands, "call", "call a tool", "refdesk.cli.ask:call")
    call.add_argument("tool", help="the tool's name; `refdesk tools` lists them")
    call.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="arguments, as `refdesk tools TOOL` shows them"
    )
    _json(call)

    check = _command(commands, "check", "check the configuration", "refdesk.cli.check:check")
    check.add_argument("--show", action="store_true", help="print every setting with its value and source")
    _json(check)

    reference = _command(commands, "reference", "print the reference pages", "refdesk.cli.reference:reference")
    reference.add_argument("page", nargs="?", choices=["settings", "tools", "errors", "metrics", "cli"])
    reference.add_argument("--write", metavar="DIR", help="write every page into this folder")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, target: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    command.add_argument("--config", metavar="FILE", help="configuration file (default ./refdesk.yaml)")
    command.add_argument("--data", metavar="DIR", help="folder for data (default the platform's user data folder)")
    command.set_defaults(run=_lazily(target))
    return command


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _lazily(target: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        module, _, name = target.partition(":")
        code: int = getattr(import_module(module), name)(arguments)
        return code

    return run
