"""Server process: started without a shell, and ended with its whole process group, even if this process is killed.

Every server leads its own session and process group, so one signal reaches all of its children. A guard process (`sh`)
waits beside it, reading from a pipe whose other end only we hold. If we are killed, the kernel closes that end and the
guard kills the group. Linux's parent-death signal would reach only the server and not what `npx` or `uvx` have started,
and setting it requires code between fork and exec, which may deadlock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from refdesk.errors import ServerAway

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Interval for polling the exit of a process, where the system has no notification for it."""

INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE",
    "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE",
)  # fmt: skip
INHERITED_FAMILIES = ("LC_", "XDG_")
"""Environment variables that a server inherits. Others may contain secrets. Other MCP clients pass on the same ones."""

GUARD = ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "refdesk-guard")
"""Guard command. Nothing is ever written to its stdin, so it blocks until we are gone. On a regular exit it's killed
first."""


@dataclass(frozen=True, slots=True)
class EndTimeouts:
    """Time limits of the steps that end a server's process, in seconds."""

    input_end: float = 1.0
    """For a server to exit once its input has ended, as the protocol requires. Most take a tenth of that."""
    term: float = 1.0
    """For a server to exit after SIGTERM. One that hangs doesn't, and closing the connection waits for it."""
    kill: float = 0.5
    """For the kernel to remove a killed process: immediate, unless it's blocked on a disk or a network drive."""


END_TIMEOUTS = EndTimeouts()


def build_environment(configured: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server process: the inherited variables and the configured ones."""
    inherited = {
        name: value
        for name, value in ours.items()
        if (name.upper() in INHERITED or name.startswith(INHERITED_FAMILIES)) and not value.startswith("()")
    }
    return inherited | dict(configured)


class ServerProcess:
    """A process that leads its own group. `on_exit` is called when it and the rest of its group have ended."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        on_exit: Callable[[], None],
        *,
        timeouts: EndTimeouts = END_TIMEOUTS,
        guard: Sequence[str] = GUARD,
    ) -> None:
        """Start the process. Raises ServerAway with a hint if that fails.

        This takes a millisecond regardless of our memory size: the child shares our memory until it executes its
        program.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                their_stdin, our_stdin = _open_pipe(reader=theirs, writer=ours)
                our_stdout, their_stdout = _open_pipe(reader=ours, writer=theirs)
                our_stderr, their_stderr = _open_pipe(reader=ours, writer=theirs)
                self._popen = subprocess.Popen(
                    argv,
                    env=env,
                    cwd=cwd,
                    stdin=their_stdin,
                    stdout=their_stdout,
                    stderr=their_stderr,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise ServerAway(
                    f"The server {name!r} cannot be started: {_describe_start_error(error, argv[0], cwd)}"
                ) from error
            ours.pop_all()
        self.pipes = our_stdin, our_stdout, our_stderr
        """Our ends of its stdin, stdout and stderr. The caller that takes them closes them."""
        self._on_exit = on_exit
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._guard = _start_guard(guard, self.pid)
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd is None:
            self._loop.call_soon(self._poll)
        else:
            self._loop.add_reader(self._pidfd, self._poll)

    @property
    def pid(self) -> int:
        """Id of the process, which is also its group id."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative signal number, or None while it runs."""
        return self._popen.returncode

    def kill(self) -> None:
        """Kill the process group."""
        self._signal(signal.SIGKILL)

    async def end(self) -> None:
        """End the process: wait, send SIGTERM, send SIGKILL, each with its time limit. Its input is already closed."""
        timeouts = self._timeouts
        await self._wait(timeouts.input_end)
        for number, seconds in ((signal.SIGTERM, timeouts.term), (signal.SIGKILL, timeouts.kill)):
            if self.status is None:
                self._signal(number)
                await self._wait(seconds)
        if self.status is None:
            # It's still watched, and reaped when it exits.
            logger.warning("downstream.unkillable", extra={"fields": {"pid": self.pid}})

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()

    def _poll(self) -> None:
        """Check whether the process has exited. If so, kill the rest of its group."""
        if self._popen.poll() is None:
            if self._pidfd is None:
                self._loop.call_later(POLL_SECONDS, self._poll)
            return
        self._signal(signal.SIGKILL)
        if self._guard is not None:
            # Kill it before closing its pipe, or it would kill the group.
            guard, pipe = self._guard
            guard.kill()
            guard.wait()
            pipe.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._exited.set()
        self._on_exit()

    def _signal(self, number: signal.Signals) -> None:
        if not self._exited.is_set():
            with suppress(ProcessLookupError, PermissionError):  # the group is gone; the error depends on the system
                os.killpg(self.pid, number)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process exits, or None if unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _start_guard(command: Sequence[str], group: int) -> tuple[subprocess.Popen[bytes], FileIO] | None:
    """Start the guard of a process group. Return it with the pipe that it reads from."""
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            their_stdin, our_stdin = _open_pipe(reader=theirs, writer=ours)
            popen = subprocess.Popen(
                [*command, str(group)],
                env={},
                cwd="/",
                stdin=their_stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            # Run the server without a guard: the end of its input still tells it that we are gone.
            logger.warning("downstream.unguarded", extra={"fields": {"pid": group, "reason": error.strerror}})
            return None
        ours.pop_all()
    return popen, our_stdin


def _open_pipe(*, reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the read and the write end of a new pipe, each closed by its stack.

    `subprocess.PIPE` isn't used: if descriptors run out, `Popen` of Python 3.11.2 leaks the pipes that it has made
    already.
    """
    read_end, write_end = os.pipe()
    return reader.enter_context(FileIO(read_end, "rb")), writer.enter_context(FileIO(write_end, "wb"))


def _describe_start_error(error: OSError | ValueError, command: str, cwd: Path | None) -> str:
    """Describe why a process couldn't be started, and what to do.

    Arguments are left out because they may be secrets.
    """
    if isinstance(error, ValueError):
        return "its command, arguments or environment hold what no process can be given, such as a null character"
    if cwd is not None and not cwd.is_dir():
        return f"the folder {str(cwd)!r} is not there; create it, or set another cwd"
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return f"there is no program {command!r}; install it, or give its full path as the command"
        case errno.EACCES:
            return f"{command!r} may not be executed; make it executable, or give the program that runs it"
        case errno.ENOEXEC:
            return f"{command!r} is no program of this system; give the program that runs it as the command"
        case errno.EMFILE | errno.ENFILE | errno.EAGAIN | errno.ENOMEM:
            return f"this machine has no room for another process ({error.strerror}); raise its limits and try again"
    return f"{error.strerror or 'the system refuses'}; look at its command, arguments and cwd"
