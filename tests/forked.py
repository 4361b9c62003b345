"""`refdesk` in forks of one process, for tests of what commands do rather than of how their process starts.

A process that is new spends more than a second on imports; a fork of one that has them takes some hundredths.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.docs.forking import CLIENT
from tests.waiting import eventually_sync

ROOT = Path(__file__).parents[1]


def refdesk() -> list[str]:
    """What takes the place of `processes.REFDESK`, with the same files, folder, environment and exit code."""
    return [sys.executable, "-I", "-S", str(_forks() / "client.py"), "refdesk"]


@cache
def _forks() -> Path:
    """The folder of the process that forks; it is started when first asked for, and ends with the tests."""
    folder = Path(tempfile.mkdtemp())
    link = folder / "forks"
    (folder / "client.py").write_text(f"import os\nos.environ['REFDESK_FORKS'] = {str(link)!r}\n{CLIENT}")
    process = subprocess.Popen([sys.executable, "-m", "tests.docs.forking", link], cwd=ROOT)
    atexit.register(_end, process, folder)
    eventually_sync(lambda: link.exists() or process.poll() is not None)
    if process.poll() is not None:
        raise RuntimeError("the process that forks ended instead of starting")
    return folder


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder)
