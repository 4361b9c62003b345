"""Setting up a project, a client and a shell, and the pages that are made from the code."""

from __future__ import annotations

from refdesk.cli.parser.arguments import Commands, Parser, as_json, command

CLIENTS = ("claude-code", "cursor", "vscode", "codex", "gemini")
"""Clients that can be set up; `refdesk.cli.setup.clients` knows how."""

SHELLS = ("bash", "zsh", "fish")

PAGES = ("settings", "tools", "errors", "metrics", "cli", "exit-codes")


def add_to(commands: Commands) -> None:
    """Put these commands into the grammar."""
    for add in (_init, _install, _uninstall, _completion, _reference):
        add(commands)


def _init(commands: Commands) -> None:
    init = command(
        commands, "init", "write a commented refdesk.yaml and a .mcp.json for this project", "refdesk.cli.init:init"
    )
    init.add_argument("--force", action="store_true", help="write over what is there and says something else")
    init.add_argument("--dry-run", action="store_true", help="only show what would be written")
    as_json(init)


def _install(commands: Commands) -> None:
    install = command(
        commands,
        "install",
        "set a client up to use this desk, once you have seen what changes",
        "refdesk.cli.install:install",
        examples=(
            "refdesk install claude-code",
            "refdesk install cursor --scope project",
            "refdesk install codex --stdio --yes",
            "refdesk install vscode --url https://desk.example.com/mcp --key-env REFDESK_KEY",
        ),
    )
    _client(install)
    where = install.add_mutually_exclusive_group()
    where.add_argument("--url", help="address of the desk (default the configured one)")
    where.add_argument("--stdio", action="store_true", help="have the client start the desk itself")
    install.add_argument(
        "--key-env", metavar="NAME", help="environment variable that holds the API key; the key is not written down"
    )
    _writing(install)


def _uninstall(commands: Commands) -> None:
    uninstall = command(
        commands, "uninstall", "take this desk out of a client's set-up", "refdesk.cli.install:uninstall"
    )
    _client(uninstall)
    _writing(uninstall)


def _client(parser: Parser) -> None:
    parser.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=f"one of {', '.join(CLIENTS)}")
    parser.add_argument("--name", default="refdesk", help="what the client calls the desk (default refdesk)")
    parser.add_argument(
        "--scope", choices=["user", "project"], default="user",
        help="for you in all projects, or for everybody in this one (default user)",
    )  # fmt: skip


def _writing(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    as_json(parser)


def _completion(commands: Commands) -> None:
    completion = command(
        commands,
        "completion",
        "print what makes a shell complete refdesk commands",
        "refdesk.cli.completion:completion",
        examples=(
            "bash: refdesk completion bash > ~/.local/share/bash-completion/completions/refdesk",
            'zsh:  refdesk completion zsh > "${fpath[1]}/_refdesk"',
            "fish: refdesk completion fish > ~/.config/fish/completions/refdesk.fish",
        ),
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    as_json(completion)


def _reference(commands: Commands) -> None:
    reference = command(commands, "reference", "print the reference pages", "refdesk.cli.reference:reference")
    reference.add_argument("page", nargs="?", choices=PAGES, metavar="PAGE", help=f"one of {', '.join(PAGES)}")
    reference.add_argument("--write", metavar="DIR", help="write every page into this folder")
    as_json(reference)
