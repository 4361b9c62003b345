"""Other converters in environments of their own: they are compared with, never depended on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .sources import ROOT, NotToBeHad

ENVIRONMENTS = ROOT / ".cache" / "convert-peers"
INSTALL_SECONDS = 600

PACKAGES: dict[str, tuple[str, ...]] = {
    "pypdf": ("pypdf==6.*",),
    "markitdown": ("markitdown[pdf,docx,pptx,xlsx]==0.1.*",),
    "docling": ("docling-slim[convert-core,format-office,format-web,format-pdf]==2.142.1",),
    "liteparse": ("liteparse==2.*",),
    "html-to-markdown": ("html-to-markdown==3.*",),
}
"""What is installed for each; docling without models and torch, from the last release that runs without them."""


def python_with(peer: str) -> Path:
    """The interpreter that has a peer; makes its environment when it is missing."""
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        _install(folder, python, PACKAGES[peer])
        ready.touch()
    return python


def _install(folder: Path, python: Path, packages: Sequence[str]) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise NotToBeHad("uv is not on the PATH")
    try:
        _run(uv, "venv", "--clear", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--python", str(python), *packages)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{packages[0]} was not installed within {INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise NotToBeHad(f"{packages[0]}: {(error.stderr.strip().splitlines() or ['no reason given'])[-1]}") from None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
