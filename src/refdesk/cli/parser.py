"""Grammar of the command line. Imports none of the commands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from refdesk.cli.arguments import (
    CommandGroup,
    Count,
    ExamplesCommand,
    Invocation,
    Misuse,
    action,
    argument,
    command,
    flag,
    forbid_together,
    option,
)
from refdesk.version import __version__

GLOBAL_OPTIONS = ("-h", "--help", "--version")
"""The only options allowed before a command."""

CHECKS = {
    "python": "Python and the installed extras",
    "config": "configuration file and settings",
    "data": "data folder: permissions, owner, free space",
    "engine": "documents and indexes",
    "locks": "processes that write the indexes",
    "embedding": "embedding model",
    "cache": "Redis, if used",
    "r2r": "R2R, if used",
    "answers": "model that writes answers, if set",
    "servers": "MCP servers behind Refdesk",
    "port": "address and port of the server",
    "console": "web console",
    "keys": "API keys and access",
    "clients": "MCP clients configured to use Refdesk",
}
"""Checks of `refdesk doctor` in display order, with their descriptions."""

SETS = ("debian", "postgresql", "python", "ubuntu")
"""Documentation sets with a recipe, for shell completion. The recipes are in `refdesk.ingest.recipes`."""

CLIENTS = ("claude-code", "cursor", "vscode", "codex", "gemini")
"""Clients that can be set up. `refdesk.cli.client_setup` implements them."""

SHELLS = ("bash", "zsh", "fish")

PAGES = ("settings", "tools", "errors", "metrics", "cli", "exit-codes")

RUNNING = [
    command(
        "serve",
        "Run the server",
        option("--host ADDRESS", "Address to listen on  [default: 127.0.0.1]"),
        option("--port PORT", "Port to listen on, 0 for any free one  [default: 8001]", type=int),
        option("--workers N", "Number of processes  [default: 1]", type=int),
        option("--toolsets NAMES", "Toolsets to offer, separated by commas  [default: all]", complete="toolsets"),
        flag("--stdio", "Serve one client on standard input and output"),
        flag("--allow-anonymous", "Accept other machines without API keys", default=None),
        has_json=False,
    ),
    command("check", "Check the configuration", flag("--show", "Print every setting with its value and source")),
    command(
        "doctor",
        "Check the installation and suggest fixes",
        option(
            "--only CHECK",
            "Run only this check, such as engine or servers (repeatable)",
            choices=list(CHECKS),
            multiple=True,
            complete="checks",
        ),
        option("--timeout SECONDS", "Time limit of a check", type=click.FloatRange(min=0, min_open=True), default=10.0),
    ),
    command(
        "keys",
        "List, make or revoke API keys",
        action("list", "make", "revoke"),
        argument("name", "Name of the key", required=False, complete="keys"),
        option("--tenant NAME", "Tenant whose documents the key gives access to  [default: default]"),
        option("--user NAME", "User who calls with the key  [default: name of the key]"),
        option(
            "--role ROLE",
            "reader, writer, service or admin (repeatable)  [default: none]",
            multiple=True,
            complete="roles",
        ),
        option(
            "--toolset NAME",
            "Toolset that the key may use (repeatable)  [default: all]",
            multiple=True,
            complete="toolsets",
        ),
        option(
            "--server PATTERN",
            "Downstream server that the key may use, such as github or github__get_* (repeatable)  [default: all]",
            multiple=True,
            complete="servers",
        ),
        option("--expires WHEN", "Expiry, such as 90d, 12h or 2027-01-31  [default: never]"),
    ),
]

_wait_or_watch = forbid_together("watch", "no_wait")
_one_part = forbid_together("section", "pages", "find")

DOCUMENTS = [
    command(
        "add",
        "Add documents to a collection",
        argument(
            "sources",
            "What to add. SET is a documentation set listed by `refdesk recipes` (recipe:NAME if a file has that "
            "name), - is text on standard input, and a .jsonl file has one document per line",
            nargs=-1,
            required=True,
            metavar="FILE|FOLDER|URL|SET|-...",
            complete="sources",
        ),
        option(
            "--collection NAME",
            "Collection to add to, created if missing  [default: name of the folder or set]",
            complete="collections",
        ),
        option("--version VERSION", "Version that the documents describe", default=""),
        option("--title TITLE", "Title of the text on standard input"),
        option("--metadata NAME=VALUE", "Metadata to filter by (repeatable)", multiple=True),
        flag("--offline", "Use the copy of a documentation set that is installed on this system"),
        option("--ignore PATTERN", "Files to skip, in .gitignore syntax (repeatable)", multiple=True),
        flag("--watch", "Keep the collection in sync with the folder until Ctrl-C", callback=_wait_or_watch),
        flag("--no-wait", "Return as soon as the documents are queued", callback=_wait_or_watch),
        examples=(
            "refdesk add docs/ --collection handbook",
            "refdesk add https://example.com/guide.html",
            "refdesk add postgresql --version 15",
        ),
    ),
    command("recipes", "List the documentation sets that `refdesk add` knows"),
    command(
        "read",
        "Read a document in parts",
        argument("document", "File, URL, handle or document ID", complete="documents"),
        option("--section ID", "Read this section", callback=_one_part),
        option("--pages N[-M]", "Read these pages", callback=_one_part),
        option("--find WORDS", "Find passages in the document", callback=_one_part),
        option("--cursor CURSOR", "Continue where the last answer stopped"),
        module="ask",
    ),
    command(
        "convert",
        "Convert files, folders or web pages",
        argument("sources", "What to convert", nargs=-1, required=True, metavar="FILE|FOLDER|URL...", complete="files"),
        option("--to", "Output format", choices=["markdown", "html", "json"], default="markdown"),
        option(
            "-o --output PATH",
            "Output file, or folder for several documents  [default: standard output]",
            complete="files",
        ),
        option("--pages N[-M]", "Convert only these pages of a PDF"),
    ),
    command(
        "documents",
        "List or remove documents",
        action("list", "remove"),
        argument("ids", "Documents to remove", nargs=-1, metavar="[ID]...", complete="documents"),
        option("--collection NAME", "List only this collection", complete="collections"),
        option(
            "--status",
            "List only documents with this status",
            choices=["pending", "success", "failed", "all"],
            default="all",
        ),
    ),
    command(
        "collections",
        "List, create or remove collections",
        action("list", "create", "remove"),
        argument(
            "names",
            "Collections to create, or to remove with their documents",
            nargs=-1,
            metavar="[NAME]...",
            complete="collections",
        ),
        option("--description TEXT", "What a new collection contains", default=""),
        option("--version VERSION", "Version that the documents describe", default=""),
        module="documents",
    ),
    command("reindex", "Rebuild the search indexes from the stored documents", module="documents"),
]

ASKING = [
    command(
        "search",
        "Search the documentation",
        argument("query", "Question or keywords", nargs=-1, required=True),
        option("--collection NAME", "Collection to search  [default: all]", complete="collections"),
        option("--doc-type NAME", "Documentation set to search  [default: all]", complete="collections"),
        option("--filter JSON", 'Filter, such as \'{"metadata.team": {"$eq": "billing"}}\''),
        option(
            "--mode",
            "Semantic search only (basic), or full-text and semantic (advanced)  [default: advanced]",
            choices=["basic", "advanced"],
        ),
        option("--limit --max-results N", "Number of results  [default: 5]", type=Count()),
        module="ask",
    ),
    command(
        "ask",
        "Answer a question, with sources",
        argument("question", "Your question", nargs=-1, required=True),
        option("--collection NAME", "Collection to answer from  [default: all]", complete="collections"),
        option("--model NAME", "Model that writes the answer, if one is configured"),
        option("--max-tokens N", "Maximum length of the answer  [default: 500]", type=Count()),
    ),
    command(
        "tools",
        "List the tools, or describe one",
        argument("tool", "Name of a tool", required=False, complete="tools"),
        module="ask",
    ),
    command(
        "call",
        "Call a tool",
        argument("tool", "Name of the tool; `refdesk tools` lists them", complete="tools"),
        argument("arguments", "Arguments, as shown by `refdesk tools TOOL`", nargs=-1, metavar="[NAME=VALUE]..."),
        module="ask",
    ),
    command(
        "eval",
        "Measure search quality",
        argument("queries", "Queries, one per line, with their answers", metavar="QUERIES.jsonl", complete="files"),
        option("--qrels FILE.tsv", "Relevance judgments in a file of their own", complete="files"),
        option("--collection NAME", "Collection to search  [default: all]", complete="collections"),
        option(
            "--tool",
            "Tool to search with  [default: search_documentation, or r2r_search with --qrels]",
            choices=["search_documentation", "r2r_search"],
        ),
        module="evaluation",
        function="evaluate",
    ),
]


class _CommandTail(ExamplesCommand):
    """Command that leaves everything after `--` unparsed, as the command line of a server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--` and store the rest as `command`."""
        end = args.index("--") if "--" in args else len(args)
        ctx.params["command"] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage with both forms."""
        return ["[OPTIONS]", "NAME", "(URL | -- COMMAND [ARGUMENT]...)"]


_server = argument("name", "Name of the server", complete="servers")

_server_actions = [
    command("list", "List the servers, with their state if Refdesk is running", module="servers", function="servers"),
    command(
        "add",
        "Add a server, by its URL or by a command after --",
        argument("name", "Name of the server"),
        argument("url", "URL, unless the server is a command", required=False),
        option("--type", "Transport  [default: depends on the URL]", choices=["stdio", "http", "sse", "websocket"]),
        option("--env NAME=VALUE", "Environment variable of the server (repeatable)", multiple=True),
        option("--header NAME=VALUE", "HTTP header to send (repeatable)", multiple=True),
        option("--cwd DIR", "Folder to start the server in", complete="files"),
        option("--docs TOOL[:ARGUMENT]", "Search tool to include in search_documentation"),
        flag("--short", "Open a new connection for each operation"),
        flag("--replace", "Replace a server of the same name"),
        module="servers",
        kind=_CommandTail,
    ),
    command("remove", "Remove a server", _server, module="servers", function="change"),
    command("enable", "Enable a server", _server, module="servers", function="change"),
    command("disable", "Disable a server", _server, module="servers", function="change"),
    command(
        "test", "Connect to a server and describe what it offers", _server, module="server_trial", function="try_server"
    ),
    command(
        "import",
        "Import the servers of other MCP clients",
        argument("file", "File of a client  [default: all that are found]", required=False, complete="files"),
        option("--from CLIENT", "Client, such as claude-desktop, cursor or vscode", name="client"),
        option("--only NAME", "Import only this server (repeatable)", multiple=True),
        flag("--replace", "Replace servers of the same name"),
        flag("--dry-run", "Show what would be imported, and write nothing"),
        module="servers",
        function="import_servers",
    ),
    command(
        "refresh", "Have a running Refdesk refresh the lists of a server", _server, module="servers", function="refresh"
    ),
    command(
        "logs",
        "Show what a server wrote to standard error",
        _server,
        option("--lines N", "Number of last lines", type=Count(), default=50),
        module="servers",
    ),
    command(
        "approve",
        "Review changed tools, and approve or reject them",
        argument("name", "Server  [default: show all]", required=False, complete="servers"),
        argument("tool", "One of its tools  [default: all that wait for approval]", required=False),
        flag("--yes", "Do not ask for confirmation"),
        flag("--reject", "Reject the tools until they change again"),
        module="server_approval",
    ),
]

SERVERS = command(
    "servers",
    "List, add or change the MCP servers behind Refdesk",
    kind=CommandGroup,
    commands=_server_actions,
    invoke_without_command=True,
    subcommand_metavar="[ACTION] ...",
)

_client = (
    argument("client", f"One of {', '.join(CLIENTS)}", choices=CLIENTS, metavar="CLIENT"),
    option("--name NAME", "Name of the server in the client", default="refdesk"),
    option(
        "--scope",
        "For you in all projects, or for everybody in this project",
        choices=["user", "project"],
        default="user",
    ),
)
_write = (flag("--yes", "Do not ask for confirmation"), flag("--dry-run", "Show what would change, and write nothing"))
_one_target = forbid_together("url", "stdio")

SETTING_UP = [
    command(
        "init",
        "Write a commented refdesk.yaml and a .mcp.json for this project",
        flag("--force", "Overwrite existing files that differ"),
        flag("--dry-run", "Show what would be written, and write nothing"),
        module="install",
    ),
    command(
        "install",
        "Configure an MCP client to use Refdesk (shows a diff first)",
        *_client,
        option("--url URL", "URL of the server  [default: from the settings]", callback=_one_target),
        flag("--stdio", "Let the client start Refdesk itself", callback=_one_target),
        option("--key-env NAME", "Environment variable with the API key; the key itself isn't written"),
        option("--project NAME", "Current project, by name or path  [default with --scope project: this folder]"),
        *_write,
        examples=(
            "refdesk install claude-code",
            "refdesk install cursor --scope project",
            "refdesk install codex --stdio --yes",
            "refdesk install vscode --url https://desk.example.com/mcp --key-env REFDESK_KEY",
        ),
    ),
    command("uninstall", "Remove Refdesk from an MCP client's settings", *_client, *_write, module="install"),
    command(
        "completion",
        "Print the shell completion script",
        argument("shell", "bash, zsh or fish", choices=SHELLS, metavar="SHELL"),
        examples=(
            "bash: refdesk completion bash > ~/.local/share/bash-completion/completions/refdesk",
            'zsh:  refdesk completion zsh > "${fpath[1]}/_refdesk"',
            "fish: refdesk completion fish > ~/.config/fish/completions/refdesk.fish",
        ),
    ),
    command(
        "reference",
        "Print the reference pages",
        argument("page", f"One of {', '.join(PAGES)}", required=False, choices=PAGES, metavar="[PAGE]"),
    ),
]

cli = CommandGroup(
    "refdesk",
    help="The reference desk for LLM agents: find, read and serve a team's documentation over MCP.",
    epilog="Run `refdesk COMMAND --help` for the options of a command.",
    commands=[*RUNNING, *DOCUMENTS, *ASKING, SERVERS, *SETTING_UP],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND ...",
)
click.version_option(__version__, message="%(prog)s %(version)s")(cli)


def parse(args: Sequence[str]) -> Invocation:
    """Parse a command line; raise UsageError if it is wrong, and Exit after `--help` or `--version`."""
    if args and args[0].startswith("-") and args[0] not in GLOBAL_OPTIONS:
        raise Misuse(f"{args[0]}: options follow the command", click.Context(cli, info_name=cli.name))
    with cli.make_context(cli.name, list(args)) as context:
        invocation: Invocation = cli.invoke(context)
        return invocation
