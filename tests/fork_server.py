"""A fork server for Refdesk's commands: each runs in a fork of one process that has imported everything already.

A new process spends about two seconds of processor time on imports before it does anything, and the tests start several
hundred. What runs in a fork is `refdesk.cli.main`, as `refdesk` does, with the caller's files, folder and environment;
only the addresses of well-known documentation are those of a site on loopback.

    python -m tests.fork_server SOCKET

`fork_client.py` stands in for `refdesk`.
"""

from __future__ import annotations

import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import refdesk.app
import refdesk.cli
import refdesk.inbound.http_server
from tests.docs.sites import turn_recipes


def main(path: str) -> None:
    """Fork for each connection, send the fork's process id and later its exit code; kill forks whose client is gone."""
    for module in pkgutil.iter_modules(refdesk.cli.__path__):
        import_module(f"refdesk.cli.{module.name}")
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    links: dict[int, socket.socket] = {}  # by process id
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}.new")
        listening.listen(16)
        os.rename(f"{path}.new", path)  # it is there when it can be called
        while True:
            poll = select.poll()
            poll.register(listening, select.POLLIN)
            poll.register(woken, select.POLLIN)
            for link in links.values():
                poll.register(link, 0)  # reports the end of the connection only; what is sent is the fork's to read
            ready = {file for file, _ in poll.poll()}
            for pid, link in links.items():
                if link.fileno() in ready:
                    os.kill(pid, signal.SIGKILL)
            if woken in ready:
                os.read(woken, 4096)
            _reap(links)
            if listening.fileno() in ready:
                link, _ = listening.accept()
                pid = os.fork()
                if pid == 0:
                    for other in (listening, *links.values()):
                        other.close()
                    os._exit(_serve(link))
                links[pid] = link
                link.sendall(pid.to_bytes(4, "big"))


def _reap(links: dict[int, socket.socket]) -> None:
    """Send the exit codes of forks that have ended to their clients; a negative one is the signal that killed it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with links.pop(pid) as link, suppress(BrokenPipeError):  # a client that is gone asks for no exit code
                link.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _serve(link: socket.socket) -> int:
    """Become the command, in the fork, and return its exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = _run(_take(link))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def _take(link: socket.socket) -> dict[str, Any]:
    """Read what is wanted, and make the three files that come with it this process's own."""
    with link:
        size, files, _, _ = socket.recv_fds(link, 4, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        with link.makefile("rb") as stream:
            taken: dict[str, Any] = json.loads(stream.read(int.from_bytes(size, "big")))
    sys.stdin, sys.stdout = (open(number, mode, closefd=False) for number, mode in enumerate("rw"))  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - by lines, as Python's own is
    return taken


def _run(wanted: dict[str, Any]) -> int:
    """Run `refdesk ARGUMENTS` or `python FILE`."""
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
    except BaseException:  # noqa: BLE001 - the error that ends a program is printed, as Python does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
