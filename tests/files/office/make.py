"""Make the office files that the tests read from their sources beside this script; needs pandoc and LibreOffice."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Make all of them anew."""
    for suffix in ("docx", "odt", "rtf", "epub"):
        _run("pandoc", "--standalone", "guide.md", "--output", f"guide.{suffix}")
    _run("pandoc", "--slide-level=2", "deck.md", "--output", "deck.pptx")
    _saved_by_libreoffice("guide.docx", "doc")
    _saved_by_libreoffice("guide.odt", "docx", "guide-libreoffice.docx")
    _saved_by_libreoffice("deck.pptx", "odp")
    for suffix in ("xlsx", "ods", "xls"):
        _saved_by_libreoffice("book.fods", suffix)


def _saved_by_libreoffice(source: str, suffix: str, name: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        profile = f"-env:UserInstallation={Path(folder, 'profile').as_uri()}"
        _run("soffice", profile, "--headless", "--convert-to", suffix, "--outdir", folder, source)
        made = Path(folder, source).with_suffix(f".{suffix}")
        (HERE / (name or made.name)).write_bytes(made.read_bytes())


def _run(*command: str) -> None:
    subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.DEVNULL, timeout=300)


if __name__ == "__main__":
    main()
