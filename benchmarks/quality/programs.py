"""The programs that write documents: browsers, typesetters, office suites; each as one function from file to file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .sources import NotToBeHad

SECONDS = 120
"""More than any of them needs for a page of the corpus on a busy machine."""


def print_by_chromium(page: Path, pdf: Path, *, furniture: bool) -> None:
    """A tagged PDF; with furniture, date, title and page number stand on every page."""
    with tempfile.TemporaryDirectory(prefix="refdesk-corpus-") as profile:
        bare = [] if furniture else ["--no-pdf-header-footer"]
        switches = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *bare]
        run("chromium", *switches, f"--print-to-pdf={pdf}", page.as_uri())


def print_by_weasyprint(page: Path, pdf: Path) -> None:
    """An untagged PDF with an outline."""
    run("weasyprint", "--quiet", str(page), str(pdf))


def convert_by_pandoc(page: Path, target: Path, *more: str) -> None:
    """Any format that pandoc writes, told by the suffix of the target."""
    run("pandoc", str(page), "--output", str(target), *more)


def convert_by_libreoffice(page: Path, target: Path, *, reading: str = "") -> None:
    """Any format that LibreOffice writes, told by the suffix of the target; `reading` names its import filter."""
    with tempfile.TemporaryDirectory(prefix="refdesk-corpus-") as folder:
        filters = [f"--infilter={reading}"] if reading else []
        profile = f"-env:UserInstallation={Path(folder, 'profile').as_uri()}"
        out = Path(folder, "out")
        run(
            "soffice",
            profile,
            "--headless",
            *filters,
            "--convert-to",
            target.suffix[1:],
            "--outdir",
            str(out),
            str(page),
        )
        made = out / f"{page.stem}{target.suffix}"
        if not made.exists():
            raise NotToBeHad(f"LibreOffice made no {target.suffix[1:]} of {page.name}")
        shutil.move(made, target)


def print_by_groff(source: Path, pdf: Path, *macros: str) -> None:
    """A PDF by troff, with neither outline nor tags."""
    run("groff", "-t", "-Tpdf", "-Kutf8", *macros, str(source), into=pdf)


def run(program: str, *arguments: str, into: Path | None = None) -> None:
    """Run a program to its end; one that is absent or fails leaves a part of the corpus out."""
    found = shutil.which(program)
    if found is None:
        raise NotToBeHad(f"{program} is not on the PATH")
    try:
        done = subprocess.run([found, *arguments], check=True, capture_output=True, timeout=SECONDS, env=_environment())
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{program} took more than {SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise NotToBeHad(f"{program} failed, saying: {said[-1]}") from None
    if into is not None:
        into.write_bytes(done.stdout)


def _environment() -> dict[str, str]:
    """A fixed time zone and language, so that every machine makes the same files."""
    return {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
