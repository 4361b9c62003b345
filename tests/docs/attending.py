"""Runs a command that goes on until it is stopped: until it says that it is ready, and then presses Ctrl-C.

    python -I -S attending.py COMMAND [ARGUMENT …]

The exit code is that of the command, so one that never gets ready, or does not end in order, has failed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from threading import Timer

READY = re.compile(rb'"event":"ready"|; press Ctrl-C to stop')
"""What `refdesk serve` and `refdesk add --watch` say on standard error, the latter when the folder is in."""

SECONDS = 200.0
"""Time limit for it to get ready and to end, below that of a page, so that the program that hangs is named."""


def main(command: list[str]) -> int:
    """Start it in a group of its own, as a terminal does, whose Ctrl-C goes to the whole group."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    limit = Timer(SECONDS, os.killpg, (process.pid, signal.SIGTERM))
    limit.start()
    signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(process.pid, number))
    is_ready = False
    for line in process.stderr:
        sys.stderr.buffer.write(line)
        if not is_ready and READY.search(line):
            is_ready = True
            os.killpg(process.pid, signal.SIGINT)
    sys.stderr.flush()
    code = process.wait()
    limit.cancel()
    return code if is_ready else code or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
