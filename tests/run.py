"""Runs all checks and test groups in parallel and prints one table of their results; `scripts/test` calls it.

    python -m tests.run [--quick] [ARGUMENTS OF PYTEST]

With arguments of pytest, the checks run first and then pytest alone, with its output as it comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest")

CHECKS = {
    "types": ("mypy",),
    "contracts": ("lint-imports", "--no-cache"),
    "lint": ("ruff", "check", "--no-cache", "."),
    "format": ("ruff", "format", "--check", "."),
}

GROUPS = {
    "docs": ["docs"],
    "console": ["console"],
    "gateway": ["gateway", "resilience"],
    "inbound": ["inbound"],
    "documents": ["documents"],
    "clients": ["clients", "conformance"],
    "engines": ["engines"],
    "downstream": ["downstream"],
    "tools": ["tools", "cli"],
    "packaging": ["packaging", "examples"],
    "r2r": ["r2r"],
}
"""Folders of tests that run together in one process. The longest group comes first, so that none is left at the end.

Folders that no group names are the group `rest`.
"""

QUICK = "not slow and not node and not r2r and not browser"
"""Marker expression of the quick run: no process trees, browsers, Node.js or R2R."""

QUICK_FIRST = ("documents", "downstream", "engines", "resilience", "cache", "ingest", "telemetry")
"""Folders of the first half of the quick run; the second half runs the others beside it."""

NOT_QUICK = (
    "answers/test_chat.py", "behaviour", "cache/test_model.py", "cache/test_redis.py", "cli/test_add.py",
    "cli/test_command_line.py", "cli/test_completion.py", "cli/test_convert.py", "cli/test_doctor.py",
    "cli/test_servers.py", "clients", "conformance", "console", "docs", "documents/test_fetch.py",
    "documents/test_sandbox.py", "documents/test_ssrf.py", "downstream/client/test_mcp_client.py",
    "downstream/connection",
    "downstream/files/test_files.py", "downstream/test_contract.py", "downstream/transports/test_http_sdk.py",
    "downstream/transports/test_stdio.py", "downstream/transports/test_stdio_ending.py", "engines/embedding",
    "engines/r2r", "engines/test_embedded.py", "engines/test_faults.py", "engines/test_vectors.py", "examples",
    "gateway", "inbound/test_internal.py", "inbound/test_oauth.py", "inbound/test_sessions.py", "ingest/recipes",
    "inbound/test_state.py", "inbound/test_streams_clients.py", "inbound/test_uploads.py", "packaging",
    "policy/test_jwt.py", "r2r", "resilience/test_breaker.py", "resilience/test_limits.py", "test_run.py",
    "tools/test_bounds.py", "tools/test_conversion.py", "tools/test_federation.py", "tools/test_foreign_hits.py",
    "tools/test_gateway.py", "tools/test_gateway_served.py", "tools/test_projects.py", "tools/test_tenants.py",
)  # fmt: skip
"""Tests that the quick run leaves out besides those with a marker: they start servers or other processes, or spend
seconds of processor time."""


@dataclass(frozen=True)
class Job:
    """A command to run, and the JUnit report it writes if it is a run of pytest."""

    name: str
    command: Sequence[str]
    report: Path | None = None


@dataclass
class Result:
    """The outcome of a job."""

    name: str
    seconds: float
    is_ok: bool
    output: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def list_jobs(folder: Path, *, quick: bool = False) -> list[Job]:
    """List the jobs of a whole run, the longest first; JUnit reports go to `folder`."""
    named = {name: [f"tests/{path}" for path in paths] for name, paths in GROUPS.items()}
    others = [f"--ignore={path}" for paths in named.values() for path in paths]
    named["rest"] = ["tests", *others]
    if quick:
        first = [f"tests/{path}" for path in QUICK_FIRST]
        left_out = [f"--ignore=tests/{path}" for path in NOT_QUICK]
        others = [*left_out, *(f"--ignore={path}" for path in first)]
        named = {"quick-1": [*first, *left_out, "-m", QUICK], "quick-2": ["tests", *others, "-m", QUICK]}
    tests = [
        Job(
            name,
            [*PYTEST, *arguments, "-o", "junit_family=xunit1", f"--junitxml={folder / name}.xml"],
            folder / f"{name}.xml",
        )
        for name, arguments in named.items()
    ]
    return [*tests, *(Job(name, command) for name, command in CHECKS.items())]


async def run_job(job: Job, slots: asyncio.Semaphore) -> Result:
    """Run a job when a slot is free."""
    async with slots:
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *job.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what the job itself has left running, too
            output.seek(0)
            said = output.read().decode(errors="replace").rstrip()
        result = Result(job.name, time.monotonic() - begin, is_ok=code == 0, output=said)
        if job.report is not None:
            read_report(job.report, result)
        return result


def read_report(path: Path, result: Result) -> None:
    """Count the tests of a JUnit report into a result."""
    if not path.exists():
        result.failed.append("pytest ended without a report")
        return
    for case in ElementTree.parse(path).iter("testcase"):
        outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if outcome is None:
            result.passed += 1
        elif outcome.tag == "skipped":
            expected = "expected to fail: " if outcome.get("type") == "pytest.xfail" else ""
            result.skipped[expected + (outcome.get("message") or "no reason given")] += 1
        else:
            result.failed.append(f"{case.get('classname')}::{case.get('name')}")


def format_table(results: Sequence[Result], seconds: float) -> str:
    """Format results as a table: groups, then skips by reason, then failures, then the count of all."""
    passed, failed = sum(result.passed for result in results), [test for result in results for test in result.failed]
    skipped = sum((result.skipped for result in results), Counter[str]())
    lines = [f"{'group':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for result in results:
        if result.name in CHECKS:
            lines.append(f"{result.name:<12}{'ok' if result.is_ok else 'FAILED':>8}{'':>17}{result.seconds:>9.0f}")
        else:
            counts = f"{result.passed:>8}{len(result.failed):>8}{result.skipped.total():>9}"
            lines.append(f"{result.name:<12}{counts}{result.seconds:>9.0f}")
    lines.append(f"{'all':<12}{passed:>8}{len(failed):>8}{skipped.total():>9}{seconds:>9.0f}")
    if skipped:
        lines += ["", "skipped  reason", *(f"{count:>7}  {reason}" for reason, count in skipped.most_common())]
    if failed:
        lines += ["", "failed", *(f"  {test}" for test in failed)]
    return "\n".join([*lines, "", f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped"])


async def run_jobs(jobs: Sequence[Job]) -> int:
    """Run jobs, two at a time per core; print each one's output as it ends, then the table. Return the exit code."""
    begin = time.monotonic()
    # A group waits for other programs for a quarter to a half of its time.
    slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run_job(job, slots)) for job in jobs]
        for count, ended in enumerate(asyncio.as_completed(running), start=1):
            result = await ended
            print(f"\n== {result.name} ({count} of {len(jobs)})\n{result.output}", flush=True)
    results = [task.result() for task in running]
    print(f"\n{format_table(results, time.monotonic() - begin)}")
    return 0 if all(result.is_ok and not result.failed for result in results) else 1


def run_some(arguments: Sequence[str], *, quick: bool) -> int:
    """Run the checks, then pytest with these arguments; return the first exit code that isn't 0."""
    for name, command in CHECKS.items():
        print(f"\n== {name}", flush=True)
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    quickly = ["-m", QUICK] if quick else []
    return subprocess.run([*PYTEST, *quickly, *arguments], cwd=ROOT, check=False).returncode


def main() -> int:
    """Run what the command line asks for."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    quick = len(arguments) < len(sys.argv[1:])
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The tests start hundreds of processes. Without cached bytecode, each of them compiles all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A shell starts jobs in the background with SIGINT ignored, and so would be the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments:
        return run_some(arguments, quick=quick)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run_jobs(list_jobs(Path(folder), quick=quick)))


if __name__ == "__main__":
    sys.exit(main())
