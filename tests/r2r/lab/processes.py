"""Programs that the lab starts: each in a process group of its own, on a tether, its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE_SECONDS, eventually_sync

TETHER = Path(__file__).with_name("tether.py")


class LabFailure(Exception):
    """A part of the lab does not work although everything is there for it."""


class Program:
    """A program that runs until it is stopped or killed, or until this process is gone."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str = "",
        ended_by: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(TETHER), str(int(ended_by)), user, *map(str, command)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                env=environment, cwd=log.parent, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, is_up: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the program is up; raise `LabFailure` if it ends or takes longer than `seconds`."""

        def is_running_and_up() -> bool:
            if self._process.poll() is not None:
                raise LabFailure(f"it ended with {self._process.returncode}: {self.tail()}")
            return is_up()

        try:
            eventually_sync(is_running_and_up, seconds)
        except TimeoutError:
            raise LabFailure(f"it was not ready within {seconds:.0f} seconds: {self.tail()}") from None

    def stop(self) -> None:
        """End it in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._end_the_rest()

    def kill(self) -> None:
        """End it at once, as a machine that loses its power does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def tail(self) -> str:
        """The last that it has said."""
        return f"{self.log}: …{self.log.read_text(errors='replace')[-1500:]}"

    def _end_the_rest(self) -> None:
        """What the program itself has started is in the same group, and goes too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
