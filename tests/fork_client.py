"""Stands in for `refdesk` or `python`: passes its arguments, files, environment and signals to a fork.

The socket of the fork server is named by `REFDESK_FORKS`, or is the file `forks` beside this one.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> int:
    """Have a command run in a fork and return its exit code, or 128 plus the signal that killed it."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ.get("REFDESK_FORKS") or os.path.join(os.path.dirname(sys.argv[0]), "forks"))
        wanted = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        socket.send_fds(link, [len(wanted).to_bytes(4, "big")], [0, 1, 2])
        link.sendall(wanted)
        fork = int.from_bytes(link.recv(4), "big")

        def pass_on(number: int, frame: FrameType | None) -> None:
            os.kill(fork, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        for file in range(3):
            os.close(file)  # the end of what the fork writes is seen when the fork ends
        code = int.from_bytes(link.recv(4), "big", signed=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
