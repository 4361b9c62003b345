"""`refdesk doctor`: run read-only checks of the installation and suggest fixes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refdesk.cli import doctor_checks
from refdesk.cli.doctor_checks import CheckContext, Finding, fail
from refdesk.cli.error_report import ExitCode
from refdesk.cli.load_config import load_settings
from refdesk.cli.parser import CHECKS
from refdesk.cli.running_desk import probe_desk
from refdesk.cli.terminal import TerminalStyle, detect_style, print_json, sanitize
from refdesk.config.loading import find_config_file, load
from refdesk.errors import ConfigError

Check = Callable[[CheckContext], Any]
"""Returns or yields findings. A check of this machine runs in a thread; one that calls a service is asynchronous."""

FUNCTIONS: Mapping[str, Check] = {name: getattr(doctor_checks, f"check_{name}") for name in CHECKS}
"""The checks by name."""


async def doctor(arguments: SimpleNamespace) -> int:
    """Run `refdesk doctor`."""
    selected = [name for name in CHECKS if not arguments.only or name in arguments.only]
    context = _build_context(arguments)
    if context.problems and "config" not in selected:
        # The checks run with defaults then, so say that the configuration is invalid.
        selected = ["config", *selected]
    found = await run_checks(context, selected)
    counts = Counter[str](finding.state for findings in found.values() for finding in findings)
    if arguments.json:
        rows = [{"check": name, **asdict(finding)} for name, findings in found.items() for finding in findings]
        print_json({"ok": not counts["fail"], "findings": rows})
    else:
        _print_findings(found, counts, detect_style(sys.stdout))
    return ExitCode.FAILED if counts["fail"] else ExitCode.OK


def _build_context(arguments: SimpleNamespace) -> CheckContext:
    """Build the check context, with default settings if the configuration is invalid."""
    problems: tuple[str, ...] = ()
    try:
        config = load_settings(arguments, serves=True)
    except ConfigError as error:
        data = arguments.data or os.environ.get("REFDESK_DATA")
        config, problems = load(None, {}, {"data_dir": data} if data else {}), error.problems
    file = Path(arguments.config) if arguments.config else find_config_file(Path.cwd(), os.environ)
    desk = probe_desk(config.own_url) if config.server.port else None
    home = Path(os.path.expanduser("~"))
    return CheckContext(config, file, problems, desk, os.environ, home, Path.cwd(), arguments.timeout)


async def run_checks(
    context: CheckContext, selected: Sequence[str], functions: Mapping[str, Check] = FUNCTIONS
) -> dict[str, Sequence[Finding]]:
    """Run the selected checks concurrently. A check that raises or times out becomes a finding."""

    async def run(name: str) -> Sequence[Finding]:
        check = functions[name]
        try:
            async with asyncio.timeout(context.timeout):
                if iscoroutinefunction(check):
                    return list(await check(context))
                return await asyncio.to_thread(lambda: list(check(context)))
        except TimeoutError:
            return [fail(f"did not finish within {context.timeout:g} seconds", "allow more time with --timeout")]
        except Exception as error:  # noqa: BLE001 - any error is this check's finding
            text = f"check failed: {type(error).__name__}: {error}"
            return [fail(text, "report this; the other checks are not affected")]

    return dict(zip(selected, await asyncio.gather(*map(run, selected)), strict=True))


def _print_findings(found: Mapping[str, Sequence[Finding]], counts: Counter[str], style: TerminalStyle) -> None:
    marks = {"ok": style.green("ok  "), "warn": style.yellow("warn"), "fail": style.red("fail")}
    width = max(map(len, found))
    for name, findings in found.items():
        for finding in findings:
            print(f"{marks[finding.state]}  {name:<{width}}  {sanitize(finding.text)}")
            if finding.fix:
                print(f"{'':{6 + width}}  {style.faint(sanitize(f'→ {finding.fix}'))}")
    faults = {"fail": "problem", "warn": "warning"}
    parts = [f"{counts[state]} {word}{'s' * (counts[state] > 1)}" for state, word in faults.items() if counts[state]]
    print(style.bold(f"{' and '.join(parts)}." if parts else "No problems found."))
