"""What the commands' grammars have in common: options that many have, verbs by other names, and what to complete."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

OTHER_VERBS = {
    "list": ("ls",),
    "remove": ("rm", "delete"),
    "revoke": ("remove", "rm", "delete"),
    "create": ("make", "add", "new"),
    "make": ("create", "add", "new"),
}
"""What people type who come from other programs, or from another command of this one, by the verb that it is here."""

_CHOICE = re.compile(r"argument (?P<argument>\S+): invalid choice: '(?P<word>[^']*)'")

_NUMBER = re.compile(r"argument (?P<option>\S+): invalid (?P<kind>int|float) value: (?P<word>.*)")
_KINDS = {"int": "whole number", "float": "number"}

_OPTION = re.compile(r"^argument (--?[\w-]+)(?:/\S+)?: |^argument ")

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.*)", re.DOTALL)


class Misuse(Exception):
    """A command line that means nothing: what is wrong with it, and which command's help says how it is written."""

    def __init__(self, problem: str, command: str = "", usage: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.command = command
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Raises Misuse instead of ending the process, and names what was probably meant."""

    _is_intermixing = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # An abbreviation that works today means something else once there is a second option like it.
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong, in plain words."""
        raise Misuse(self._plain(message), self.prog, self.format_usage().strip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Each command complains of its own options, as it alone knows what they could have been."""
        if self._is_intermixing:
            return super().parse_known_args(args, namespace)
        known, unknown = self._parsed(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, []

    def _parsed(self, args: Any, namespace: Any) -> tuple[argparse.Namespace, list[str]]:
        """Options may stand anywhere among the words, but where the words lead to another parser."""
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False

    def _plain(self, message: str) -> str:
        if choice := _CHOICE.match(message):
            return self._unknown_choice(choice["argument"], choice["word"])
        if unknown := _UNKNOWN.match(message):
            first = unknown["words"].split()[0]
            if first.startswith("-"):
                return f"there is no option {first}{_meant(first, self._option_string_actions)}"
            return f"{unknown['words']!r} is one argument too many"
        if number := _NUMBER.match(message):
            return f"{number['option'].split('/')[0]}: {number['word']} is no {_KINDS[number['kind']]}"
        message = message.replace("the following arguments are required", "missing")
        return _OPTION.sub(r"\1: ", message)

    def _unknown_choice(self, argument: str, word: str) -> str:
        action = next(one for one in self._actions if argument in (one.metavar, one.dest, *_names(one)))
        kind = str(action.metavar or action.dest).lower() if not action.option_strings else f"{argument} value"
        choices = [str(choice) for choice in action.choices or ()]
        hint = _meant(word, choices) or f"; there are {', '.join(choices)}"
        return f"there is no {kind} {word!r}{hint}"


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def _names(action: argparse.Action) -> Sequence[str]:
    return [*action.option_strings, "/".join(action.option_strings)]


def _meant(word: str, known: Iterable[str]) -> str:
    # Only for who mistypes: everybody else need not wait for it to be imported.
    import difflib

    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def command(commands: Commands, name: str, summary: str, target: str, *, examples: Sequence[str] = ()) -> Parser:
    """A command with the options that all have; `target` is the function that it runs, imported when it does."""
    made = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files(made.add_argument("--config", metavar="FILE", help="configuration file (default ./refdesk.yaml)"))
    data = made.add_argument("--data", metavar="DIR", help="folder for data (default the platform's user data folder)")
    files(data)
    made.set_defaults(run=_lazily(target), command_name=name)
    return made


def verb(parser: Parser, *verbs: str) -> None:
    """What to do with the things that a command is about; by the first one when nothing is said."""
    meant = {other: one for one in verbs for other in OTHER_VERBS.get(one, ())}
    parser.add_argument(
        "action", nargs="?", type=lambda word: meant.get(word, word), choices=verbs, default=verbs[0],
        help=f"what to do (default {verbs[0]})",
    )  # fmt: skip


def collection(parser: Parser, meaning: str) -> None:
    """`--collection`."""
    live(parser.add_argument("--collection", metavar="NAME", help=meaning), "collections")


def as_json(parser: Parser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")


def several(parser: Parser, option: str, metavar: str, meaning: str) -> argparse.Action:
    """An option that may be given again."""
    return parser.add_argument(option, action="append", default=[], metavar=metavar, help=meaning)


def count(word: str) -> int:
    """How many of something: none would be nothing to ask for."""
    try:
        number = int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def live(action: argparse.Action, kind: str) -> argparse.Action:
    """Have a shell complete this with what there is at that moment: `collections`, `servers`, `tools` and so on."""
    action.completes = kind  # type: ignore[attr-defined]
    return action


def files(action: argparse.Action) -> argparse.Action:
    """Have a shell complete this with the names of files."""
    return live(action, "files")


def _lazily(target: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        module, _, name = target.partition(":")
        code: int = getattr(import_module(module), name)(arguments)
        return code

    return run
