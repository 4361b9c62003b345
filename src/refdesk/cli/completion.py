"""`refdesk completion`: shell completion of commands, options, choices and live names.

The shell scripts call `refdesk __complete`, which asks click for the candidates, so they never go out of date. They
aren't click's own, which split words at `:` in bash and lose `--option=` in zsh and fish.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from click.shell_completion import ShellComplete

from refdesk.cli.exit_codes import ExitCode
from refdesk.cli.parser import cli

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


def completion(arguments: SimpleNamespace) -> int:
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
    *before, incomplete = words or [""]
    option, equals, _ = incomplete.partition("=")
    prefix = f"{option}=" if equals and option.startswith("--") and "--" not in before else ""
    items = ShellComplete(cli, {}, "refdesk", "").get_completions(before, incomplete)
    return [(FILES if item.type == "file" else f"{prefix}{item.value}", item.help or "") for item in items]
