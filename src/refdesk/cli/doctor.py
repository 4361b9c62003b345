"""`refdesk doctor`: looks at everything that a desk needs, changes nothing, and says how to mend what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from refdesk.cli.checks import callers, documents, installation, servers, services
from refdesk.cli.checks.finding import Finding, Situation, fail
from refdesk.cli.checks.names import CHECKS
from refdesk.cli.exit_codes import Exit
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.running_desk import running_desk
from refdesk.cli.settings import load_settings
from refdesk.cli.terminal import Ink, ink_for, printable
from refdesk.config import Config, find, load
from refdesk.errors import ConfigError
from refdesk.validation import nearest_name

Looking = Mapping[str, Callable[[Situation], Sequence[Finding]]]
Asking = Mapping[str, Callable[[Situation], Awaitable[Sequence[Finding]]]]

LOOKING: Looking = {
    "python": installation.python,
    "config": installation.config,
    "data": installation.data,
    "engine": documents.engine,
    "locks": documents.locks,
    "port": callers.port,
    "console": installation.console,
    "keys": callers.keys,
    "clients": callers.clients,
}
"""Checks that look at this machine; each is run in a thread."""

ASKING: Asking = {
    "embedding": services.embedding,
    "cache": services.cache,
    "r2r": services.r2r,
    "answers": services.answers,
    "servers": servers.servers,
}
"""Checks that wait for somebody's answer."""


def doctor(arguments: Namespace) -> int:
    """`refdesk doctor`."""
    wanted = _wanted(arguments.only)
    if arguments.timeout <= 0:
        raise Misuse("--timeout: must be more than zero")
    situation = _situation(arguments)
    if situation.problems and "config" not in wanted:
        # What is looked at then are the defaults, and nobody is to take them for the configuration.
        wanted = ["config", *wanted]
    found = asyncio.run(examine(situation, wanted))
    worst = Counter[str](finding.state for findings in found.values() for finding in findings)
    if arguments.json:
        rows = [{"check": name, **asdict(finding)} for name, findings in found.items() for finding in findings]
        print(json.dumps({"ok": not worst["fail"], "findings": rows}, indent=2, ensure_ascii=False))
    else:
        _print(found, worst, ink_for(sys.stdout))
    return Exit.FAILED if worst["fail"] else Exit.DONE


def _wanted(only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in CHECKS:
            nearest = nearest_name(name, list(CHECKS))
            raise Misuse(f"--only: there is no check {name!r}; {f'did you mean {nearest}?' if nearest else _all()}")
    return [name for name in CHECKS if not only or name in only]


def _all() -> str:
    return f"there are {', '.join(CHECKS)}"


def _situation(arguments: Namespace) -> Situation:
    """What there is to look at; by the defaults where the configuration cannot be used."""
    problems: tuple[str, ...] = ()
    try:
        config = load_settings(arguments, serves=True)
    except ConfigError as error:
        config, problems = _defaults(arguments), error.problems
    file = Path(arguments.config) if arguments.config else find(Path.cwd(), os.environ)
    desk = running_desk(config.own_url) if config.server.port else None
    home = Path(os.path.expanduser("~"))
    return Situation(config, file, problems, desk, os.environ, home, Path.cwd(), arguments.timeout)


def _defaults(arguments: Namespace) -> Config:
    data = arguments.data or os.environ.get("REFDESK_DATA")
    return load(None, {}, {"data_dir": data} if data else {})


async def examine(
    situation: Situation, wanted: Sequence[str], *, looking: Looking = LOOKING, asking: Asking = ASKING
) -> dict[str, Sequence[Finding]]:
    """Run all checks at once; what goes wrong in one is told as what it found."""
    found = await asyncio.gather(*(_run(name, situation, looking, asking) for name in wanted))
    return dict(zip(wanted, found, strict=True))


async def _run(name: str, situation: Situation, looking: Looking, asking: Asking) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(situation.seconds):
            if name in asking:
                return await asking[name](situation)
            return await asyncio.to_thread(looking[name], situation)
    except TimeoutError:
        return [fail(f"did not end within {situation.seconds:g} seconds", "give it longer with --timeout")]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what this check has found
        return [
            fail(
                f"could not be looked at: {type(error).__name__}: {error}", "see what it says; the rest is not affected"
            )
        ]


def _print(found: Mapping[str, Sequence[Finding]], counts: Counter[str], ink: Ink) -> None:
    marks = {"ok": ink.green("ok  "), "warn": ink.yellow("warn"), "fail": ink.red("fail")}
    width = max(map(len, found))
    for name, findings in found.items():
        for finding in findings:
            print(f"{marks[finding.state]}  {name:<{width}}  {printable(finding.text)}")
            if finding.mend:
                print(f"{'':{6 + width}}  {ink.faint(printable(f'→ {finding.mend}'))}")
    faults = {"fail": "fault", "warn": "warning"}
    told = [f"{counts[state]} {word}{'s' * (counts[state] > 1)}" for state, word in faults.items() if counts[state]]
    print(ink.bold(f"{' and '.join(told)}." if told else "All is well."))
