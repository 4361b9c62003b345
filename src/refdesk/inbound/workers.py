"""Several processes on one listening socket: started before any loop or thread exists, replaced when they die."""

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
"""The exit code of a worker that no other could take the place of, because it would fail the same way."""

RESTART_SECONDS = 1.0
"""Between a worker's death and its successor, so that one that cannot live does not eat the machine."""


def run_workers(count: int, work: Callable[[], int]) -> int:
    """Run `work` in that many processes until told to stop; answers the exit code for the whole."""
    workers = Workers(work)
    for which in STOP_SIGNALS:
        signal.signal(which, workers.stop)
    workers.start_all(count)
    return workers.wait()


class Workers:
    """The children of this process."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._children: set[int] = set()
        self._stopping = False
        # Held open by the parent alone: when it is gone, however it went, the children read the end of it.
        self._life, self._parent = os.pipe()

    def start_all(self, count: int) -> None:
        """Fork that many children, unless told to stop meanwhile."""
        for _ in range(count):
            if not self._stopping:
                self.start()

    def start(self) -> None:
        """Fork one more child."""
        sys.stdout.flush()
        sys.stderr.flush()
        # Held back until parent and child are ready for them: one in between would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        child = os.fork()
        if child:
            self._children.add(child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            return
        for which in STOP_SIGNALS:
            signal.signal(which, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.close(self._parent)
        threading.Thread(target=self._follow_parent, daemon=True).start()
        code = 1
        try:
            code = self._work()
        except BaseException:  # noqa: BLE001 - the process ends here, and says why
            traceback.print_exc()
        finally:
            # Not `sys.exit`: what the parent registered for its own end is not the child's to run.
            sys.stderr.flush()
            os._exit(code)

    def _follow_parent(self) -> None:
        os.read(self._life, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self, which: int, frame: FrameType | None) -> None:
        """Tell every child to finish."""
        self._stopping = True
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def wait(self) -> int:
        """Until all have ended; a child that ends unasked is replaced, one that refuses to start ends the rest."""
        worst = 0
        while self._children:
            child, status = os.wait()
            self._children.discard(child)
            code = os.waitstatus_to_exitcode(status)
            if code == CANNOT_START and not self._stopping:
                self.stop(signal.SIGTERM, None)
            if self._stopping:
                # Told to stop before it could listen for that: it stopped all the same.
                worst = max(worst, 0 if code == -signal.SIGTERM else abs(code))
                continue
            time.sleep(RESTART_SECONDS)
            if not self._stopping:
                self.start()
        return worst
