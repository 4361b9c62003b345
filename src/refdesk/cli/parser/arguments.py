"""Building blocks of the commands: common options, actions with aliases, live completion, and what parsing returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]

ACTION_ALIASES = {
    "list": ("ls",),
    "remove": ("rm", "delete"),
    "revoke": ("remove", "rm", "delete"),
    "create": ("make", "add", "new"),
    "make": ("create", "add", "new"),
}
"""Accepted synonyms by action, from other programs or from other commands of this one."""


class Misuse(click.UsageError):
    """Usage error that a command finds in its arguments."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A parsed command line: the function to run, as `module:function`, and its arguments."""

    target: str
    arguments: SimpleNamespace
    context: click.Context

    def run(self) -> int:
        """Import the command, run it, and return its exit code."""
        module, _, name = self.target.partition(":")
        try:
            code: int = getattr(import_module(module), name)(self.arguments)
        except click.UsageError as error:
            error.ctx = error.ctx or self.context
            raise
        return code


class ExamplesCommand(click.Command):
    """Command whose epilog is a list of examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, adding the context that some usage errors lack."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as a section, unwrapped."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text(f"\b\n{self.epilog}")


class CommandGroup(click.Group):
    """Command group in the order of declaration, with action aliases."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, most important first."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or alias."""
        aliases = {alias: name for name in self.commands for alias in ACTION_ALIASES.get(name, ())}
        return super().get_command(ctx, aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command. When completing, an unknown one is a command without arguments."""
        if ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            return args[0], click.Command(args[0], add_help_option=False), args[1:]
        return super().resolve_command(ctx, args)


class ActionChoice(click.Choice[str]):
    """Actions of a command, by name or alias."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the action's name."""
        aliases = {alias: name for name in self.choices for alias in ACTION_ALIASES.get(name, ())}
        return super().convert(aliases.get(value, value), param, ctx)


class Count(click.IntRange):
    """Whole number of at least 1."""

    name = "integer"

    def __init__(self) -> None:
        super().__init__(min=1)


def list_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete with file names, which the shell lists."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def list_live(kind: str) -> Completer:
    """Return a completer with live names of a kind: `collections`, `servers`, `tools` and so on."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from refdesk.cli.live_values import list_live_values

        return list_live_values(kind, collect_arguments(ctx), incomplete)

    return complete


def option(*names: str, help: str, **attributes: Any) -> click.Option:
    """Declare an option."""
    return click.Option(names, help=help, **attributes)


def flag(name: str, help: str, **attributes: Any) -> click.Option:
    """Declare an option without a value."""
    return click.Option([name], is_flag=True, help=help, **attributes)


def argument(name: str, help: str, **attributes: Any) -> click.Argument:
    """Declare a positional argument."""
    return click.Argument([name], help=help, **attributes)


def action(*verbs: str) -> click.Argument:
    """Declare the action of a command. The first one is the default."""
    return argument("action", f"What to do  [default: {verbs[0]}]", type=ActionChoice(verbs), default=verbs[0])


def collection(help: str) -> click.Option:
    """Declare `--collection`."""
    return option("--collection", metavar="NAME", help=help, shell_complete=list_live("collections"))


def forbid_together(*names: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback for options that exclude each other."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        other = next((name for name in names if name != param.name and ctx.params.get(name)), None)
        if value and other:
            raise click.UsageError(f"Option '{param.opts[0]}' cannot be used with '--{other.replace('_', '-')}'.", ctx)
        return value

    return check


CONFIG = option(
    "--config", metavar="FILE", help="Configuration file  [default: ./refdesk.yaml]", shell_complete=list_files
)
DATA = option("--data", metavar="DIR", help="Data folder  [default: the user's data folder]", shell_complete=list_files)
JSON = flag("--json", "Print JSON, including errors")


def command(
    name: str,
    summary: str,
    target: str,
    *params: click.Parameter,
    examples: Sequence[str] = (),
    kind: type[click.Command] = ExamplesCommand,
    **attributes: Any,
) -> click.Command:
    """Declare a command with the options common to all. `target` is `module:function`, imported when it runs."""
    return kind(
        name,
        params=[*params, CONFIG, DATA],
        callback=_return_invocation(target),
        help=f"{summary}.",
        short_help=summary,
        epilog="\n".join(examples),
        **attributes,
    )


def _return_invocation(target: str) -> Callable[..., Invocation]:
    def callback(**_: Any) -> Invocation:
        context = click.get_current_context()
        return Invocation(target, collect_arguments(context), context)

    return callback


def collect_arguments(context: click.Context) -> SimpleNamespace:
    """Return the arguments of a command. Options before an action count as if they came after it."""
    inherited = context.parent.params if context.parent else {}
    own = {name: value or inherited.get(name, value) for name, value in context.params.items()}
    return SimpleNamespace(**{"action": context.command.name, **own})
