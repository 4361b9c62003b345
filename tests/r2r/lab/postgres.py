"""A Postgres with what R2R needs of it, in a folder of its own.

It does not run as root, so under root it runs as `nobody`. Nothing is forced to the disk: the data lives as long as
the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.ports import find_free_port
from tests.r2r.lab.processes import Program
from tests.r2r.lab.wheels import Unavailable
from tests.waiting import PATIENCE_SECONDS

PREPARE = """
create extension vector;
create function public.uuid_generate_v4() returns uuid language sql volatile as 'select gen_random_uuid()';
"""
"""R2R wants three extensions more, which the wheel has not, and uses only this function of one of them."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


class Postgres:
    """A server that is up, with an empty database `r2r` whose owner needs no password."""

    user, database = "postgres", "r2r"

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder / "postgres"
        self._log = folder / "postgres.log"
        self._account = "nobody" if os.geteuid() == 0 else ""
        self._require_that_it_can_be_run()
        self._initialise()
        self.port = find_free_port()
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command: list[str | Path] = [programs / "postgres", "-D", self._folder, "-p", str(self.port), *settings]
        self._program = Program(command, self._log, user=self._account, ended_by=signal.SIGINT)
        self._program.wait_until(self._answers)

    def stop(self) -> None:
        """Close every connection and end."""
        self._program.stop()

    def _require_that_it_can_be_run(self) -> None:
        try:
            self._run("postgres", "--version")
        except PermissionError:
            raise Unavailable(
                "Postgres does not run as root, and nobody else may read the checkout; "
                "use another account, or keep the checkout where everybody may read it"
            ) from None

    def _initialise(self) -> None:
        """An empty cluster; the database is made without a server, in Postgres's single-user mode."""
        self._folder.mkdir(mode=0o700)
        if self._account:
            shutil.chown(self._folder, self._account)
        self._run(
            "initdb", "-D", self._folder, "-U", self.user, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8",
            "--no-sync", "--no-instructions",
        )  # fmt: skip
        self._run(
            "postgres", "--single", "-F", "-D", self._folder, "postgres", given=f"create database {self.database};"
        )
        # In this mode a line is a statement.
        self._run("postgres", "--single", "-F", "-D", self._folder, self.database, given=PREPARE)

    def _answers(self) -> bool:
        probe = ["-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", self.database, "-U", self.user]
        return subprocess.run([self._programs / "pg_isready", *probe], cwd="/").returncode == 0

    def _run(self, program: str, *arguments: str | Path, given: str = "") -> None:
        with self._log.open("ab") as output:
            subprocess.run(
                [self._programs / program, *arguments],
                input=given.encode(), stdout=output, stderr=output, check=True, cwd="/", timeout=PATIENCE_SECONDS,
                user=self._account or None, group="nogroup" if self._account else None,
                extra_groups=[] if self._account else None,
            )  # fmt: skip
