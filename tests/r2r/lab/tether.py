"""Runs a program that ends with whoever started it: `tether.py SIGNAL USER PROGRAM [ARGUMENTS]`.

Its standard input is the tether. When that closes, because the starter closed it or is no more, however it ended, the
program is sent the signal, and is killed when it does not go. A program of its own, and small: it needs no package.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 10
"""How long a program may take to end in order."""


def main() -> int:
    number, user, *command = sys.argv[1:]
    for number_sent in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_sent, _wait_to_be_let_go)
    other = {"user": user, "group": "nogroup", "extra_groups": []} if user else {}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **other)  # type: ignore[call-overload]
    threading.Thread(target=_end_when_let_go, args=(process, int(number)), daemon=True).start()
    return int(process.wait())


def _wait_to_be_let_go(*_: object) -> None:
    """A terminal sends it to the starter too, who then lets go; to ignore it would have the program ignore it."""


def _end_when_let_go(process: subprocess.Popen[bytes], number: int) -> None:
    while sys.stdin.buffer.read(1):
        pass
    process.send_signal(number)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
