"""`refdesk completion`: what a shell needs to complete commands, options, choices and names of what there is.

The shells only ask: what fits is found here, by the grammar itself, so that it is never out of date. Imports little,
as somebody waits at a key.
"""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

from refdesk.cli.exit_codes import Exit
from refdesk.cli.parser import Parser, build_parser

FILES = ":files"
"""Says to the shell that names of files belong here, which it knows best."""

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
    """`refdesk completion`."""
    script = SCRIPTS[arguments.shell]
    print(json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script, end="")
    return Exit.DONE


def complete(words: Sequence[str]) -> int:
    """Print what the last word can become, one a line, with its meaning after a tab."""
    for word, meaning in completions(words):
        sys.stdout.write(f"{word}\t{meaning}\n" if meaning else f"{word}\n")
    sys.stdout.flush()
    return Exit.DONE


def completions(words: Sequence[str]) -> list[tuple[str, str]]:
    """What the last of these words can become; those before it say where in the grammar it stands."""
    *before, begun = words or [""]
    if "--" in before:
        return []
    parser, seen, options = _place(build_parser(), before)
    if waiting := _waiting(parser, before):
        return _fitting(_values(waiting, words), begun)
    option, equals, value = begun.partition("=")
    if equals and option in parser._option_string_actions:
        found = _fitting(_values(parser._option_string_actions[option], words), value)
        return [(f"{option}={word}" if word != FILES else FILES, meaning) for word, meaning in found]
    if begun.startswith("-"):
        return _fitting(_options(parser, options), begun)
    positional = _positional(parser, seen)
    return _fitting(_values(positional, words), begun) if positional else []


def _place(parser: Parser, before: Sequence[str]) -> tuple[Parser, int, set[str]]:
    """The parser that the last word is for, how many of its own words were given, and which options."""
    seen, options, is_value = 0, set[str](), False
    for word in before:
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            options.add(word.partition("=")[0])
            action = parser._option_string_actions.get(word)
            is_value = action is not None and action.nargs != 0
        elif (inner := _subparsers(parser)) and word in inner.choices:
            parser, seen, options = inner.choices[word], 0, set()
        else:
            seen += 1
    return parser, seen, options


def _subparsers(parser: Parser) -> argparse._SubParsersAction[Parser] | None:
    return next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)


def _waiting(parser: Parser, before: Sequence[str]) -> argparse.Action | None:
    """The option whose value comes next."""
    action = parser._option_string_actions.get(before[-1]) if before else None
    return action if action is not None and action.nargs != 0 else None


def _positional(parser: Parser, seen: int) -> argparse.Action | None:
    for action in parser._get_positional_actions():
        if action.nargs in ("*", "+") or seen == 0:
            return action
        seen -= 1
    return None


def _options(parser: Parser, given: set[str]) -> Iterator[tuple[str, str]]:
    """Each option by its first long name, unless it was given and cannot be given again."""
    for action in parser._actions:
        long = [name for name in action.option_strings if name.startswith("--")]
        if long and (isinstance(action, argparse._AppendAction) or given.isdisjoint(action.option_strings)):
            yield long[0], action.help or ""


def _values(action: argparse.Action, words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """What an argument can be: its choices, or what there is of the kind that the grammar names."""
    if isinstance(action, argparse._SubParsersAction):
        return [(one.dest, one.help or "") for one in action._choices_actions]
    if action.choices:
        return [(str(choice), "") for choice in action.choices]
    kind = getattr(action, "completes", None)
    if kind == "files":
        return [(FILES, "")]
    if kind is None:
        return []
    from refdesk.cli.live_values import live_values

    return live_values(kind, words)


def _fitting(found: Iterable[tuple[str, str]], begun: str) -> list[tuple[str, str]]:
    return [(word, meaning) for word, meaning in found if word == FILES or word.startswith(begun)]
