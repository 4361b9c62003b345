"""`refdesk completion`: shell completion of commands, options, choices and live names.

The shell scripts call `refdesk __complete`, which derives candidates from the parser, so they never go out of date.
Imports are kept few, as it runs on every Tab.
"""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

from refdesk.cli.exit_codes import ExitCode
from refdesk.cli.parser import Parser, build_parser

FILES = ":files"
"""Marker that tells the shell script to complete file names."""

BASH = r"""# bash completion for refdesk
_refdesk() {
    local word="${COMP_WORDS[COMP_CWORD]}" line before
    # What stands before the cursor, cut at spaces alone: bash would cut at = and : as well.
    read -ra before <<< "${COMP_LINE:0:COMP_POINT}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && before+=("")
    local whole="${before[${#before[@]}-1]}"
    COMPREPLY=()
    while IFS=$'\t' read -r line _; do
        if [[ "$line" == ":files" ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$word")
        elif [[ -n "$line" ]]; then
            # bash puts this in the place of its own last word, which may be less than ours.
            COMPREPLY+=("${line:$((${#whole} - ${#word}))}")
        fi
    done < <("${before[0]}" __complete "${before[@]:1}" 2>/dev/null)
}
complete -F _refdesk refdesk
"""

ZSH = r"""#compdef refdesk
_refdesk() {
    local -a found
    local line files=0
    while IFS= read -r line; do
        if [[ "$line" == ":files" ]]; then
            files=1
        elif [[ -n "$line" ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe 'refdesk' found
    (( files )) && _files
}
if [[ "${funcstack[1]}" == "_refdesk" ]]; then _refdesk "$@"; else compdef _refdesk refdesk; fi
"""

FISH = r"""# fish completion for refdesk
function __refdesk_complete
    set -l words (commandline -opc)
    for line in ($words[1] __complete $words[2..] (commandline -ct) 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c refdesk -f -a '(__refdesk_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(arguments: Namespace) -> int:
    """Run `refdesk completion`."""
    script = SCRIPTS[arguments.shell]
    print(json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script, end="")
    return ExitCode.OK


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one per line, each with a description after a tab."""
    for word, description in list_completions(words):
        sys.stdout.write(f"{word}\t{description}\n" if description else f"{word}\n")
    sys.stdout.flush()
    return ExitCode.OK


def list_completions(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the candidates for the last word. The words before it give its position in the grammar."""
    *before, prefix = words or [""]
    if "--" in before:
        return []
    parser, positionals, options = _locate(build_parser(), before)
    if pending := _find_pending_option(parser, before):
        return _filter_by_prefix(_list_values(pending, words), prefix)
    option, equals, value = prefix.partition("=")
    if equals and option in parser._option_string_actions:
        candidates = _filter_by_prefix(_list_values(parser._option_string_actions[option], words), value)
        return [(f"{option}={word}" if word != FILES else FILES, description) for word, description in candidates]
    if prefix.startswith("-"):
        return _filter_by_prefix(_list_options(parser, options), prefix)
    positional = _find_positional(parser, positionals)
    return _filter_by_prefix(_list_values(positional, words), prefix) if positional else []


def _locate(parser: Parser, before: Sequence[str]) -> tuple[Parser, int, set[str]]:
    """Return the parser that the last word belongs to, its positional count so far, and its options in use."""
    positionals, options, is_value = 0, set[str](), False
    for word in before:
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            options.add(word.partition("=")[0])
            action = parser._option_string_actions.get(word)
            is_value = action is not None and action.nargs != 0
        elif (inner := _find_subparsers(parser)) and word in inner.choices:
            parser, positionals, options = inner.choices[word], 0, set()
        else:
            positionals += 1
    return parser, positionals, options


def _find_subparsers(parser: Parser) -> argparse._SubParsersAction[Parser] | None:
    return next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)


def _find_pending_option(parser: Parser, before: Sequence[str]) -> argparse.Action | None:
    """Return the option whose value comes next, if any."""
    action = parser._option_string_actions.get(before[-1]) if before else None
    return action if action is not None and action.nargs != 0 else None


def _find_positional(parser: Parser, positionals: int) -> argparse.Action | None:
    for action in parser._get_positional_actions():
        if action.nargs in ("*", "+") or positionals == 0:
            return action
        positionals -= 1
    return None


def _list_options(parser: Parser, used: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each option by its first long name, unless it is in use and can't be repeated."""
    for action in parser._actions:
        long = [name for name in action.option_strings if name.startswith("--")]
        if long and (isinstance(action, argparse._AppendAction) or used.isdisjoint(action.option_strings)):
            yield long[0], action.help or ""


def _list_values(action: argparse.Action, words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Return an argument's possible values: its choices, or live names of the kind set on the action."""
    if isinstance(action, argparse._SubParsersAction):
        return [(one.dest, one.help or "") for one in action._choices_actions]
    if action.choices:
        return [(str(choice), "") for choice in action.choices]
    kind = getattr(action, "completes", None)
    if kind == "files":
        return [(FILES, "")]
    if kind is None:
        return []
    from refdesk.cli.live_values import list_live_values

    return list_live_values(kind, words)


def _filter_by_prefix(candidates: Iterable[tuple[str, str]], prefix: str) -> list[tuple[str, str]]:
    return [(word, description) for word, description in candidates if word == FILES or word.startswith(prefix)]
