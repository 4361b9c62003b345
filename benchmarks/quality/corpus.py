"""Documents whose structure is known, made once and kept: `python -m benchmarks.quality.corpus`.

    .cache/convert-corpus/<half>/<format>/<name>.<format>   the document
    .cache/convert-corpus/<half>/<format>/<name>.md         its truth, made from the source, by no converter under test

Half of them are for tuning (`dev`), the others only for reporting (`holdout`). A source belongs to one half in all of
its formats, and a manual with all of its chapters.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .sources import CORPUS, NotToBeHad

HALVES = ("dev", "holdout")
SALT = "34"
"""One with which every typesetter that made several of the manuals is in both halves."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A document of the corpus and its truth."""

    name: str
    document: Path
    truth: Path


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a document is made, should it be missing."""

    format: str
    name: str
    source: str
    """What decides its half: the page or the manual that it is made of."""
    truth: Callable[[], str]
    make: Callable[[Path], None]

    @property
    def document(self) -> Path:
        """Where it is kept."""
        return CORPUS / half_of(self.source) / self.format / f"{self.name}.{self.format}"


def half_of(source: str) -> str:
    """Which half a source belongs to, by its name alone."""
    return HALVES[hashlib.sha256(f"{SALT} {source}".encode()).digest()[0] % 2]


def samples(format: str, half: str) -> list[Sample]:
    """What has been made of a format."""
    folder = CORPUS / half / format
    found = (Sample(path.stem, path, path.with_suffix(".md")) for path in sorted(folder.glob(f"*.{format}")))
    return [sample for sample in found if sample.truth.exists()]


def build(recipes: Iterator[Recipe]) -> None:
    """Make what is missing; what cannot be made is left out, and said."""
    for recipe in recipes:
        if recipe.document.exists() and recipe.document.with_suffix(".md").exists():
            continue
        recipe.document.parent.mkdir(parents=True, exist_ok=True)
        try:
            _make(recipe)
        except NotToBeHad as error:
            print(f"{recipe.format} {recipe.name} is left out: {error}", file=sys.stderr)


def _make(recipe: Recipe) -> None:
    """Into a folder aside first, so that a document which is there is whole."""
    with tempfile.TemporaryDirectory(prefix="refdesk-corpus-") as folder:
        made = Path(folder, f"made.{recipe.format}")
        recipe.make(made)
        recipe.document.with_suffix(".md").write_text(recipe.truth(), "utf-8")
        recipe.document.write_bytes(made.read_bytes())


def slug(text: str) -> str:
    """A title as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def main() -> int:
    """Make the corpus, or the parts of it that are named."""
    from .recipes import RECIPES  # they are made of what is defined above

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"all by default; there are {', '.join(RECIPES)}")
    parts = parser.parse_args().part or list(RECIPES)
    if unknown := [part for part in parts if part not in RECIPES]:
        parser.error(f"no such part: {', '.join(unknown)}")
    for part in parts:
        try:
            build(RECIPES[part]())
        except NotToBeHad as error:
            print(f"{part} is left out: {error}", file=sys.stderr)
    for half in HALVES:
        counts = {folder.name: len(samples(folder.name, half)) for folder in sorted((CORPUS / half).glob("*"))}
        print(half, counts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
