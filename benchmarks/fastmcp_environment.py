"""FastMCP's own environment: it needs other packages than we do, and is a peer, not a dependency."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from report import ROOT

VERSION = "4.1.2"
"""4.1.3 and later ask for a certifi that registries did not have yet when this was written."""
FOLDER = ROOT / ".cache" / "bench-fastmcp"
PYTHON = FOLDER / "bin" / "python"
INSTALL_SECONDS = 300


class CannotInstall(Exception):
    """FastMCP cannot be had here; the message says why."""


def fastmcp_python() -> Path:
    """The interpreter that has FastMCP; makes the environment when it is missing."""
    if not _has_fastmcp():
        _install()
    return PYTHON


def _has_fastmcp() -> bool:
    code = f"from importlib.metadata import version; assert version('fastmcp') == '{VERSION}'; import uvloop, httptools"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode == 0


def _install() -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise CannotInstall("uv is not on the PATH")
    packages = [f"fastmcp=={VERSION}", "uvloop", "httptools"]
    try:
        _run(uv, "venv", "--clear", "--python", sys.executable, str(FOLDER))
        _run(uv, "pip", "install", "--python", str(PYTHON), *packages)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"not installed within {INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise CannotInstall(error.stderr.strip().splitlines()[-1]) from None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
