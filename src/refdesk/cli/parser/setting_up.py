"""Arguments of init, install, uninstall, completion and reference."""

from __future__ import annotations

from refdesk.cli.parser.arguments import Commands, Parser, add_command, add_json_option

CLIENTS = ("claude-code", "cursor", "vscode", "codex", "gemini")
"""Clients that can be set up. `refdesk.cli.setup.clients` implements them."""

SHELLS = ("bash", "zsh", "fish")

PAGES = ("settings", "tools", "errors", "metrics", "cli", "exit-codes")


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    for add in (_add_init, _add_install, _add_uninstall, _add_completion, _add_reference):
        add(commands)


def _add_init(commands: Commands) -> None:
    init = add_command(
        commands, "init", "write a commented refdesk.yaml and a .mcp.json for this project", "refdesk.cli.init:init"
    )
    init.add_argument("--force", action="store_true", help="write over what is there and says something else")
    init.add_argument("--dry-run", action="store_true", help="only show what would be written")
    add_json_option(init)


def _add_install(commands: Commands) -> None:
    install = add_command(
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
    _add_client_arguments(install)
    where = install.add_mutually_exclusive_group()
    where.add_argument("--url", help="address of the desk (default the configured one)")
    where.add_argument("--stdio", action="store_true", help="have the client start the desk itself")
    install.add_argument(
        "--key-env", metavar="NAME", help="environment variable that holds the API key; the key is not written down"
    )
    _add_write_options(install)


def _add_uninstall(commands: Commands) -> None:
    uninstall = add_command(
        commands, "uninstall", "take this desk out of a client's set-up", "refdesk.cli.install:uninstall"
    )
    _add_client_arguments(uninstall)
    _add_write_options(uninstall)


def _add_client_arguments(parser: Parser) -> None:
    parser.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=f"one of {', '.join(CLIENTS)}")
    parser.add_argument("--name", default="refdesk", help="what the client calls the desk (default refdesk)")
    parser.add_argument(
        "--scope", choices=["user", "project"], default="user",
        help="for you in all projects, or for everybody in this one (default user)",
    )  # fmt: skip


def _add_write_options(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_json_option(parser)


def _add_completion(commands: Commands) -> None:
    completion = add_command(
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
    add_json_option(completion)


def _add_reference(commands: Commands) -> None:
    reference = add_command(commands, "reference", "print the reference pages", "refdesk.cli.reference:reference")
    reference.add_argument("page", nargs="?", choices=PAGES, metavar="PAGE", help=f"one of {', '.join(PAGES)}")
    reference.add_argument("--write", metavar="DIR", help="write every page into this folder")
    add_json_option(reference)
