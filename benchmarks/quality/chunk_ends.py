"""Count the chunks that end in the middle of a thought: on a lone term, a heading or a colon.

    python -m benchmarks.quality.chunk_ends /usr/share/doc/postgresql-doc-15/html /usr/share/doc/git-doc

Each folder is a manual. Its pages are converted and split in this process, without a server or a model. One JSON line
per manual has the share of each kind of end, the number of chunks, their tokens and the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Literal

from refdesk.documents.chunking import chunks
from refdesk.documents.convert import convert
from refdesk.errors import RefdeskError

End = Literal["term", "heading", "colon"]

_QUOTE = re.compile(r"^(?:> ?)+")
_TERM = re.compile(r"\*\*(?:(?!\*\*).)+\*\*|`[^`]+`")
"""A line that is bold or code as a whole."""


def classify_end(text: str) -> End | None:
    """Return how a chunk breaks off, or None if it ends with a whole thought."""
    *before, last = [_QUOTE.sub("", line).strip() for line in text.splitlines() if line.strip("> ")] or [""]
    if last.rstrip("*_` ").endswith((":", "：")) and not last.startswith(("|", "```")):
        return "colon"
    if re.match(r"#{1,6} ", last) and not any(line.startswith("```") for line in before):
        return "heading"
    is_example = bool(before) and before[-1].endswith(":")
    return "term" if _TERM.fullmatch(last) and last[-3] not in ".!?" and not is_example else None


def measure(folder: Path, suffixes: tuple[str, ...], show: End | None = None) -> dict[str, object]:
    """Convert and split all pages of a folder."""
    ends: Counter[End | None] = Counter()
    tokens = files = failures = 0
    started = process_time()
    for path in _iter_pages(folder, suffixes):
        try:
            document = convert(path.read_bytes(), path.name)
        except RefdeskError:
            failures += 1
            continue
        files += 1
        for chunk in chunks(document.blocks):
            end = classify_end(chunk.text)
            ends[end] += 1
            tokens += chunk.tokens
            if show and end == show:
                print(f"--- {path.name} {chunk.id} {' › '.join(chunk.path)}\n{chunk.text[-300:]}", file=sys.stderr)
    total = max(ends.total(), 1)
    shares = {f"{kind}_percent": round(100 * ends[kind] / total, 2) for kind in ("term", "heading", "colon")}
    return {
        "manual": str(folder),
        "files": files,
        "failures": failures,
        "chunks": ends.total(),
        "tokens": tokens,
        "tokens_per_chunk": round(tokens / total, 1),
        **shares,
        "open_percent": round(100 * (total - ends[None]) / total, 2) if ends else 0.0,
        "cpu_seconds": round(process_time() - started, 1),
    }


def _iter_pages(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix in suffixes and path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--suffix", action="append", help="file name suffix of pages (default: .html)")
    parser.add_argument("--show", choices=("term", "heading", "colon"), help="print chunks with this end")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        print(json.dumps(measure(folder, tuple(arguments.suffix or (".html",)), arguments.show)), flush=True)


if __name__ == "__main__":
    main()
