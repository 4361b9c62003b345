"""Building blocks of the commands: common options, actions with aliases, completion, and what parsing returns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.core import augment_usage_errors

from refdesk.cli.error_report import ExitCode

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
    """A parsed command line: the function to run, its module in `refdesk.cli`, and its arguments."""

    module: str
    function: str
    arguments: SimpleNamespace
    context: click.Context

    def run(self) -> int:
        """Import the command, run it, on an event loop if it is asynchronous, and return its exit code.

        A command that fails only by an exception returns None.
        """
        module = import_module(f"refdesk.cli.{self.module}")
        with augment_usage_errors(self.context):
            code: int | Coroutine[Any, Any, int | None] | None = getattr(module, self.function)(self.arguments)
            if isinstance(code, Coroutine):
                import asyncio

                code = asyncio.run(code)
        return code or ExitCode.OK


class ExamplesCommand(click.Command):
    """Command whose epilog is a list of examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, adding the context that some usage errors lack."""
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

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
        return super().get_command(ctx, _resolve_alias(cmd_name, self.commands))

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
        return super().convert(_resolve_alias(value, self.choices), param, ctx)


def _resolve_alias(word: str, actions: Iterable[str]) -> str:
    return next((action for action in actions if word in ACTION_ALIASES.get(action, ())), word)


class Count(click.IntRange):
    """Whole number of at least 1."""

    name = "integer"

    def __init__(self) -> None:
        super().__init__(min=1)


def option(declaration: str, help: str, *, name: str = "", **attributes: Any) -> click.Option:
    """Declare an option, such as `-o --output PATH`. Its parameter has another name if `name` is given."""
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if words[-1] not in names else None
    decls = [*names, name] if name else names
    attributes = _expand_attributes(show_default=bool(attributes.get("default")), **attributes)
    return click.Option(decls, help=help, metavar=metavar, **attributes)


def flag(name: str, help: str, **attributes: Any) -> click.Option:
    """Declare an option without a value."""
    return click.Option([name], is_flag=True, help=help, **attributes)


def argument(name: str, help: str, **attributes: Any) -> click.Argument:
    """Declare a positional argument."""
    return click.Argument([name], help=help, **_expand_attributes(**attributes))


def _expand_attributes(*, choices: Sequence[str] = (), complete: str = "", **attributes: Any) -> dict[str, Any]:
    """Return click's attributes for `choices`, and for `complete`: a kind of live names, such as `collections`."""
    if choices:
        attributes["type"] = click.Choice(choices)
    if complete:

        def list_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
            from refdesk.cli.completion import list_live_values

            return list_live_values(complete, collect_arguments(ctx), incomplete)

        attributes["shell_complete"] = list_values
    return attributes


def action(*verbs: str) -> click.Argument:
    """Declare the action of a command. The first one is the default."""
    return argument("action", f"What to do  [default: {verbs[0]}]", type=ActionChoice(verbs), default=verbs[0])


def forbid_together(*names: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback for options that exclude each other."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        other = next((name for name in names if name != param.name and ctx.params.get(name)), None)
        if value and other:
            raise click.UsageError(f"Option '{param.opts[0]}' cannot be used with '--{other.replace('_', '-')}'.", ctx)
        return value

    return check


CONFIG = option("--config FILE", "Configuration file  [default: ./refdesk.yaml]", complete="files")
DATA = option("--data DIR", "Data folder  [default: the user's data folder]", complete="files")
JSON = flag("--json", "Print JSON, including errors")


def command(
    name: str,
    summary: str,
    *params: click.Parameter,
    module: str = "",
    function: str = "",
    examples: Sequence[str] = (),
    has_json: bool = True,
    kind: type[click.Command] = ExamplesCommand,
    **attributes: Any,
) -> click.Command:
    """Declare a command with the options common to all. Its function, imported when it runs, has its name.

    So has the module in `refdesk.cli`, unless another is given.
    """

    def return_invocation(**_: Any) -> Invocation:
        context = click.get_current_context()
        return Invocation(module or name, function or name, collect_arguments(context), context)

    return kind(
        name,
        params=[*params, *([JSON] if has_json else []), CONFIG, DATA],
        callback=return_invocation,
        help=f"{summary}.",
        short_help=summary,
        epilog="\n".join(examples),
        **attributes,
    )


def collect_arguments(context: click.Context) -> SimpleNamespace:
    """Return the arguments of a command. Options before an action count as if they came after it."""
    inherited = context.parent.params if context.parent else {}
    own = {name: value or inherited.get(name, value) for name, value in context.params.items()}
    return SimpleNamespace(**{"action": context.command.name, **own})
