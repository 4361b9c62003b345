"""Worker processes on one listening socket: forked before any event loop or thread exists, restarted when they die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

CANNOT_START = 2
"""Exit code of a worker that failed in a way that a restart can't fix."""

RESTART_SECONDS = 1.0
"""Pause before a dead worker is restarted, so that one that always fails doesn't use up the CPU."""


def run_workers(count: int, work: Callable[[], int]) -> int:
    """Run `work` in `count` processes until a stop signal, and return the exit code."""
    workers = Workers(work)
    for which in STOP_SIGNALS:
        signal.signal(which, workers.stop)
    for _ in range(count):
        workers.start()
    return workers.wait()


class Workers:
    """The child processes of this process."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._children: set[int] = set()
        self._stopping = False
        # Only the parent holds the write end: when it dies, for whatever reason, the children read end of file.
        self._parent_pipe, self._parent_pipe_writer = os.pipe()

    def start(self) -> None:
        """Fork one child, unless stopped meanwhile."""
        if self._stopping:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        # Blocked until parent and child have set up their handlers. A signal in between would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        child = os.fork()
        if child:
            self._children.add(child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            return
        for which in STOP_SIGNALS:
            signal.signal(which, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.close(self._parent_pipe_writer)
        threading.Thread(target=self._exit_with_parent, daemon=True).start()
        code = 1
        try:
            code = self._work()
        except BaseException:  # noqa: BLE001 - the process ends here, and says why
            traceback.print_exc()
        finally:
            # Not `sys.exit`: the child must not run the parent's exit handlers.
            sys.stderr.flush()
            os._exit(code)

    def _exit_with_parent(self) -> None:
        os.read(self._parent_pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self, which: int, frame: FrameType | None) -> None:
        """Send SIGTERM to every child."""
        self._stopping = True
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def wait(self) -> int:
        """Wait until all children have ended.

        A child that dies is restarted. One that can't start stops the others.
        """
        worst = 0
        while self._children:
            child, status = os.wait()
            self._children.discard(child)
            code = os.waitstatus_to_exitcode(status)
            if code == CANNOT_START and not self._stopping:
                self.stop(signal.SIGTERM, None)
            if self._stopping:
                # It was stopped before its own handler was installed.
                worst = max(worst, 0 if code == -signal.SIGTERM else abs(code))
                continue
            time.sleep(RESTART_SECONDS)
            self.start()
        return worst
