"""What the sandbox is tried with: jobs that work, and jobs that do what hostile files make converters do."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refdesk.documents.sandbox_worker import HEADER, Progress, frame
from refdesk.errors import CannotConvert

FORGED = {"forged": True}


def run(job: dict[str, Any], source: int, output: int, progress: Progress) -> dict[str, Any]:
    """Do what the job names."""
    if job["do"] == "copy":
        return copy(source, output)
    if job["do"] == "report":
        return report(job["steps"], progress)
    if job["do"] == "report_and_loop":
        progress(0, 1, str(os.getpid()))
        _loop(job)
    if job["do"] == "fill":
        return fill(output, job["bytes"])
    return ACTIONS[job["do"]](job) or {"pid": os.getpid()}


def copy(source: int, output: int) -> dict[str, Any]:
    """Copy from the one file to the other."""
    return {"copied": os.write(output, os.read(source, 1_000_000))}


def report(steps: int, progress: Progress) -> dict[str, Any]:
    """Report one step after another, far faster than anybody reads."""
    for step in range(steps):
        progress(step, steps, f"step {step}")
    return {"steps": steps}


def fill(output: int, size: int) -> dict[str, Any]:
    """Write so many bytes."""
    written = 0
    while written < size:
        written += os.write(output, bytes(min(100_000, size - written)))
    return {"written": written}


def _echo(job: dict[str, Any]) -> dict[str, Any]:
    return {"echo": job["text"]}


def _refuse(job: dict[str, Any]) -> None:
    raise CannotConvert("This file is locked with a password. Unlock it first.")


def _fail(job: dict[str, Any]) -> None:
    raise ZeroDivisionError("a secret of the converter's")


def _panic(job: dict[str, Any]) -> None:
    raise BaseException("what a library in Rust raises is no Exception")


def _unsendable(job: dict[str, Any]) -> dict[str, Any]:
    return {"answer": object()}


def _long_answer(job: dict[str, Any]) -> dict[str, Any]:
    return {"answer": "a" * 5_000_000}


def _loop(job: dict[str, Any]) -> None:
    while True:
        pass


def _sleep(job: dict[str, Any]) -> None:
    signal.pause()


def _eat_memory(job: dict[str, Any]) -> None:
    held = []
    while True:
        held.append(bytearray(10_000_000))


def _give_up_for_want_of_memory(job: dict[str, Any]) -> None:
    os.write(2, b"memory allocation of 5000000000 bytes failed\n")
    os.abort()


def _abort(job: dict[str, Any]) -> None:
    os.abort()


def _segfault(job: dict[str, Any]) -> None:
    ctypes.string_at(0)


def _signal(job: dict[str, Any]) -> None:
    if job["signal"] != signal.SIGKILL:
        signal.signal(job["signal"], signal.SIG_DFL)
    signal.raise_signal(job["signal"])


def _exit(job: dict[str, Any]) -> None:
    os._exit(0)


def _chatter(job: dict[str, Any]) -> None:
    for _ in range(30):
        os.write(1, b"chatter " * 10_000)
        os.write(2, b"noise " * 10_000)


def _send(data: bytes) -> None:
    """Speak to the server behind the worker's back, as one that was taken over would."""
    for number in range(3, 64):
        try:
            stray = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if stray.family == socket.AF_UNIX:
            stray.sendall(data)
            return


def _garbage(job: dict[str, Any]) -> None:
    _send(HEADER.pack(7) + b"garbage")


def _huge_frame(job: dict[str, Any]) -> None:
    _send(HEADER.pack(2**32 - 1))


def _strange_frame(job: dict[str, Any]) -> None:
    _send(frame(job["message"]))


def _half_frame(job: dict[str, Any]) -> None:
    _send(HEADER.pack(1000) + b"{")
    os._exit(0)


def _speak_later(job: dict[str, Any]) -> dict[str, Any]:
    """Answer twice at once, so that the second answer would be taken for that of the next job."""
    _send(frame({"kind": "answer", "answer": {"pid": os.getpid()}}) + frame({"kind": "answer", "answer": FORGED}))
    return FORGED


def _leave_child(job: dict[str, Any]) -> dict[str, Any]:
    try:
        child = os.fork()
    except OSError as error:
        return {"refused": error.errno}
    if not child:
        signal.pause()
        os._exit(0)
    return {"child": child}


def _start_thread(job: dict[str, Any]) -> dict[str, Any]:
    heard: list[str] = []
    thread = threading.Thread(target=heard.append, args=("thread",))
    thread.start()
    thread.join()
    return {"heard": heard}


def _connect(job: dict[str, Any]) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", job["port"]), timeout=5):
        return {"connected": True}


def _kill_server(job: dict[str, Any]) -> None:
    os.kill(os.getppid(), signal.SIGTERM)


def _attempt(act: Callable[[], object]) -> str:
    try:
        return repr(act())
    except OSError as error:
        return type(error).__name__


def _open_files(job: dict[str, Any]) -> dict[str, Any]:
    path = Path(job["path"])
    return {
        "read": _attempt(path.read_text),
        "write": _attempt(lambda: Path(job["folder"], "new").write_text("x")),
        "list": _attempt(lambda: list(Path(job["folder"]).iterdir())),
        "environment of the server": _attempt(Path(f"/proc/{os.getppid()}/environ").read_bytes),
    }


def _meddle(job: dict[str, Any]) -> dict[str, Any]:
    server = os.getppid()
    return {
        "mode of a file": _attempt(lambda: os.chmod(job["path"], 0o777)),
        "time of a file": _attempt(lambda: os.utime(job["path"], (0, 0))),
        "limits of the server": _attempt(lambda: resource.prlimit(server, resource.RLIMIT_CORE, (0, 0))),
        "priority of the server": _attempt(lambda: os.setpriority(os.PRIO_PROCESS, server, 19)),
        "cores of the server": _attempt(lambda: os.sched_setaffinity(server, {0})),
    }


def _fatten(job: dict[str, Any]) -> dict[str, Any]:
    """Hold much memory for a moment, and let go of it."""
    return {"pid": os.getpid(), "held": len(bytearray(job["bytes"]).replace(b"\0", b"\1"))}


def _describe(job: dict[str, Any]) -> dict[str, Any]:
    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("CPU", "AS", "CORE")}
    return {"environment": dict(os.environ), "cwd": os.getcwd(), "session": os.getsid(0), "pid": os.getpid(), **limits}


def _import_converters(job: dict[str, Any]) -> dict[str, Any]:
    """Load every converter where it will be loaded: behind the walls."""
    for name in ("pypdfium2", "selectolax.lexbor", "anydoc", "office_oxide", "markdown_it", "docutils.core"):
        __import__(name)
    return {"imported": True}


ACTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    name.lstrip("_"): action for name, action in list(globals().items()) if name.startswith("_") and callable(action)
}
