"""Arguments of init, install, uninstall, completion and reference."""

from __future__ import annotations

import click

from refdesk.cli.parser.arguments import JSON, argument, command, flag, forbid_together, option

CLIENTS = ("claude-code", "cursor", "vscode", "codex", "gemini")
"""Clients that can be set up. `refdesk.cli.setup.clients` implements them."""

SHELLS = ("bash", "zsh", "fish")

PAGES = ("settings", "tools", "errors", "metrics", "cli", "exit-codes")

_client = (
    argument("client", f"One of {', '.join(CLIENTS)}", type=click.Choice(CLIENTS), metavar="CLIENT"),
    option("--name", metavar="NAME", default="refdesk", show_default=True, help="Name of the server in the client"),
    option(
        "--scope",
        type=click.Choice(["user", "project"]),
        default="user",
        show_default=True,
        help="For you in all projects, or for everybody in this project",
    ),
)
_write = (
    flag("--yes", "Do not ask for confirmation"),
    flag("--dry-run", "Show what would change, and write nothing"),
    JSON,
)
_one_target = forbid_together("url", "stdio")

COMMANDS = [
    command(
        "init",
        "Write a commented refdesk.yaml and a .mcp.json for this project",
        "refdesk.cli.init:init",
        flag("--force", "Overwrite existing files that differ"),
        flag("--dry-run", "Show what would be written, and write nothing"),
        JSON,
    ),
    command(
        "install",
        "Configure an MCP client to use Refdesk (shows a diff first)",
        "refdesk.cli.install:install",
        *_client,
        option("--url", metavar="URL", help="URL of the server  [default: from the settings]", callback=_one_target),
        flag("--stdio", "Let the client start Refdesk itself", callback=_one_target),
        option(
            "--key-env",
            metavar="NAME",
            help="Environment variable with the API key; the key itself isn't written",
        ),
        *_write,
        examples=(
            "refdesk install claude-code",
            "refdesk install cursor --scope project",
            "refdesk install codex --stdio --yes",
            "refdesk install vscode --url https://desk.example.com/mcp --key-env REFDESK_KEY",
        ),
    ),
    command(
        "uninstall",
        "Remove Refdesk from an MCP client's settings",
        "refdesk.cli.install:uninstall",
        *_client,
        *_write,
    ),
    command(
        "completion",
        "Print the shell completion script",
        "refdesk.cli.completion:completion",
        argument("shell", "bash, zsh or fish", type=click.Choice(SHELLS), metavar="SHELL"),
        JSON,
        examples=(
            "bash: refdesk completion bash > ~/.local/share/bash-completion/completions/refdesk",
            'zsh:  refdesk completion zsh > "${fpath[1]}/_refdesk"',
            "fish: refdesk completion fish > ~/.config/fish/completions/refdesk.fish",
        ),
    ),
    command(
        "reference",
        "Print the reference pages",
        "refdesk.cli.reference:reference",
        argument("page", f"One of {', '.join(PAGES)}", required=False, type=click.Choice(PAGES), metavar="[PAGE]"),
        JSON,
    ),
]
