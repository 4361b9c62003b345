"""Parser class and helpers shared by all commands: common options, action aliases and completion hints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

ACTION_ALIASES = {
    "list": ("ls",),
    "remove": ("rm", "delete"),
    "revoke": ("remove", "rm", "delete"),
    "create": ("make", "add", "new"),
    "make": ("create", "add", "new"),
}
"""Accepted synonyms by action, from other programs or from other commands of this one."""

_CHOICE = re.compile(r"argument (?P<argument>\S+): invalid choice: '(?P<word>[^']*)'")

_NUMBER = re.compile(r"argument (?P<option>\S+): invalid (?P<kind>int|float) value: (?P<word>.*)")
_KINDS = {"int": "whole number", "float": "number"}

_OPTION = re.compile(r"^argument (--?[\w-]+)(?:/\S+)?: |^argument ")

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.*)", re.DOTALL)


class Misuse(Exception):
    """Usage error: what is wrong, and the command whose help explains it."""

    def __init__(self, problem: str, command: str = "", usage: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.command = command
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Argument parser that raises Misuse instead of exiting, and suggests corrections."""

    _is_intermixing = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # An abbreviation that works today breaks once a second option shares its prefix.
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raise Misuse with argparse's message reworded."""
        raise Misuse(self._reword(message), self.prog, self.format_usage().strip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, rejecting unknown ones here: only this command can suggest its own options."""
        if self._is_intermixing:
            return super().parse_known_args(args, namespace)
        known, unknown = self._parse(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, []

    def _parse(self, args: Any, namespace: Any) -> tuple[argparse.Namespace, list[str]]:
        """Parse options and positionals in any order, unless the positionals lead to subparsers."""
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False

    def _reword(self, message: str) -> str:
        if choice := _CHOICE.match(message):
            return self._unknown_choice(choice["argument"], choice["word"])
        if unknown := _UNKNOWN.match(message):
            first = unknown["words"].split()[0]
            if first.startswith("-"):
                return f"there is no option {first}{_suggest(first, self._option_string_actions)}"
            return f"{unknown['words']!r} is one argument too many"
        if number := _NUMBER.match(message):
            return f"{number['option'].split('/')[0]}: {number['word']} is no {_KINDS[number['kind']]}"
        message = message.replace("the following arguments are required", "missing")
        return _OPTION.sub(r"\1: ", message)

    def _unknown_choice(self, argument: str, word: str) -> str:
        action = next(one for one in self._actions if argument in (one.metavar, one.dest, *_list_names(one)))
        kind = str(action.metavar or action.dest).lower() if not action.option_strings else f"{argument} value"
        choices = [str(choice) for choice in action.choices or ()]
        hint = _suggest(word, choices) or f"; there are {', '.join(choices)}"
        return f"there is no {kind} {word!r}{hint}"


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def _list_names(action: argparse.Action) -> Sequence[str]:
    return [*action.option_strings, "/".join(action.option_strings)]


def _suggest(word: str, known: Iterable[str]) -> str:
    # Imported late, as only mistyped arguments need it.
    import difflib

    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def add_command(commands: Commands, name: str, summary: str, target: str, *, examples: Sequence[str] = ()) -> Parser:
    """Add a command with the options common to all. `target` is `module:function`, imported when it runs."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    complete_files(parser.add_argument("--config", metavar="FILE", help="configuration file (default ./refdesk.yaml)"))
    data = parser.add_argument(
        "--data", metavar="DIR", help="folder for data (default the platform's user data folder)"
    )
    complete_files(data)
    parser.set_defaults(run=_import_lazily(target), command_name=name)
    return parser


def add_action_argument(parser: Parser, *verbs: str) -> None:
    """Add the action argument of a command. The first action is the default."""
    aliases = {other: one for one in verbs for other in ACTION_ALIASES.get(one, ())}
    parser.add_argument(
        "action", nargs="?", type=lambda word: aliases.get(word, word), choices=verbs, default=verbs[0],
        help=f"what to do (default {verbs[0]})",
    )  # fmt: skip


def add_collection_option(parser: Parser, meaning: str) -> None:
    """Add `--collection`."""
    complete_with(parser.add_argument("--collection", metavar="NAME", help=meaning), "collections")


def add_json_option(parser: Parser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")


def add_repeatable_option(parser: Parser, option: str, metavar: str, meaning: str) -> argparse.Action:
    """Add an option that may be given several times."""
    return parser.add_argument(option, action="append", default=[], metavar=metavar, help=meaning)


def parse_count(word: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        number = int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def complete_with(action: argparse.Action, kind: str) -> argparse.Action:
    """Complete the argument with live names of a kind: `collections`, `servers`, `tools` and so on."""
    action.completes = kind  # type: ignore[attr-defined]
    return action


def complete_files(action: argparse.Action) -> argparse.Action:
    """Complete the argument with file names."""
    return complete_with(action, "files")


def _import_lazily(target: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        module, _, name = target.partition(":")
        code: int = getattr(import_module(module), name)(arguments)
        return code

    return run
