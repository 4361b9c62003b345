"""The programs that write documents: browsers, typesetters, office suites; each as one function from file to file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .sources import NotToBeHad, unpacked

SECONDS = 120
"""More than any of them needs for a page of the corpus on a busy machine."""
STEADY = {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""A fixed time zone and language, so that every machine makes the same files."""


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


def print_by_latex(page: Path, pdf: Path, *more: str) -> None:
    """A PDF by pdfTeX as pandoc lets it make one; its fonts are taken from their package where they are missing."""
    fonts = unpacked("lmodern") / "usr/share/texmf"
    header = r"--variable=header-includes:\pdfmapfile{+lm.map}"
    run("pandoc", str(page), "--output", str(pdf), header, *more, TEXMFHOME=str(fonts))


def print_by_groff(source: Path, pdf: Path, *macros: str) -> None:
    """A PDF by troff; its macros are taken from their package where only the small one is installed."""
    package = unpacked("groff")
    share = next((package / "usr/share/groff").glob("*.*"))
    path = f"{package / 'usr/bin'}:{os.environ['PATH']}"
    places = ["-M", str(share / "tmac"), "-F", str(share / "font")]
    run("groff", "-t", "-Tpdf", "-Kutf8", *places, *macros, str(source), into=pdf, PATH=path)


def run(program: str, *arguments: str, into: Path | None = None, **variables: str) -> None:
    """Run a program to its end; one that is absent or fails leaves a part of the corpus out."""
    found = shutil.which(program)
    if found is None:
        raise NotToBeHad(f"{program} is not on the PATH")
    environment = {**os.environ, **STEADY, **variables}
    try:
        done = subprocess.run([found, *arguments], check=True, capture_output=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{program} took more than {SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise NotToBeHad(f"{program} failed, saying: {said[-1]}") from None
    if into is not None:
        into.write_bytes(done.stdout)
