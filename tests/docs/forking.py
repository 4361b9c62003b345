"""Refdesk's commands and small Python programs, run in forks of one process that has imported everything already.

A command costs most of a second of imports before it does anything, and the pages have more than a hundred of them.
What runs in a fork is `refdesk.cli.main`, as `refdesk` does, with the caller's files, folder and environment; only the
addresses of well-known documentation are those of a site on loopback.

    python -m tests.docs.forking SOCKET
"""

from __future__ import annotations

import array
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import refdesk.app
import refdesk.cli
import refdesk.inbound.http_server
from tests.docs.sites import turn_recipes

CLIENT = """\
import array, json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["REFDESK_FORKS"])
wanted = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
link.sendmsg([len(wanted).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
link.sendall(wanted)
fork = int.from_bytes(link.recv(4), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(fork, number))
sys.exit((link.recv(1) or bytes([139]))[0])
"""
"""What stands in the place of `refdesk`: passes files, folder, environment, arguments and signals on, and waits for the
end."""


def main(path: str) -> None:
    """Take one command after another, until the process is stopped."""
    for module in pkgutil.iter_modules(refdesk.cli.__path__):
        import_module(f"refdesk.cli.{module.name}")
    signal.signal(signal.SIGCHLD, _bury)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}.new")
        listening.listen(16)
        os.rename(f"{path}.new", path)  # it is there when it can be called
        while True:
            link, _ = listening.accept()
            with link:
                if os.fork() == 0:
                    os._exit(_serve(link))


def _bury(number: int, frame: FrameType | None) -> None:
    """Take note of forks that have ended, so that what they cost counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(link: socket.socket) -> int:
    """In the fork: become the command, and tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wanted = _take(link)
    link.sendall(os.getpid().to_bytes(4, "big"))
    code = _run(wanted)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    link.sendall(bytes([code]))
    return code


def _take(link: socket.socket) -> dict[str, Any]:
    """What is wanted; the three files become this process's own."""
    size, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    files = array.array("i", ancillary[0][2])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = (open(number, mode, closefd=False) for number, mode in enumerate("rw"))  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - by lines, as Python's own is
    wanted = bytearray()
    while len(wanted) < int.from_bytes(size, "big"):
        wanted += link.recv(65_536)
    taken: dict[str, Any] = json.loads(wanted)
    return taken


def _run(wanted: dict[str, Any]) -> int:
    """`refdesk ARGUMENTS`, or `python FILE`."""
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    program, *arguments = wanted["argv"]
    sys.argv = [program, *arguments] if program == "refdesk" else arguments
    try:
        if program == "refdesk":
            turn_recipes(wanted["env"])
            return refdesk.cli.main(arguments)
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 - the end of a program: it is told on standard error, as Python would
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
