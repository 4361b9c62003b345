"""OCR of scanned pages, if the OCR extra is installed.

The models come with the package; nothing is downloaded. It is imported at the first scanned page, since that takes a
second and 300 MB of address space. Recognized words go through the same layout analysis as others.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from refdesk.documents.convert.source import Progress
from refdesk.support.extras import build_install_command

from .layout import compute_area
from .page_reader import PageContent, Word
from .pdfium import Font

logger = logging.getLogger(__name__)

PACKAGES = ("rapidocr", "onnxruntime", "cv2")
INSTALL = build_install_command("ocr")

SCANNED_COVER = 0.5
"""Share of a page: an image that covers more, on a page with hardly any words, is a scan."""

SCANNED_WORDS = 3
"""Words of a scanner's stamp or a page number."""

DEFAULT_SECONDS = 40.0
"""Time limit per document without a CPU limit; a printed page takes 3 to 10."""

TIME_SHARE = 0.65
"""Share of the conversion's time; the rest is for a slow last page and the other steps."""

DOTS_PER_INCH = 180
"""Rendering resolution: less blurs small print, more changes nothing."""

MAX_SIDE = 2_000
"""Pixels of the longer side; posters are rendered coarser."""

SETTINGS = {
    "Global.log_level": "critical",
    "Global.use_cls": False,  # detects single lines that are upside down
    "Global.max_side_len": MAX_SIDE,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Rec.rec_batch_num": 1,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "EngineConfig.onnxruntime.enable_cpu_mem_arena": False,
}
"""Tuned for a worker's gigabyte of address space: lines are located in an image of at most 960 pixels and read one at a
time from the larger one. That halves time and memory, and finds the same words."""

M_MMAP_THRESHOLD = -3
"""glibc malloc parameter: size from which freed memory is returned to the system at once."""

LARGE_BYTES = 131_072
"""Initial value of that parameter, before glibc raises it. Otherwise pages take 900 MB instead of 700."""

LETTER_HEIGHT = 0.82
"""Share of a recognized line's height that is its letter size."""

SAME_SIZE_RANGE = (0.8, 1.25)
"""Ratios to the page's usual line height that count as one size, as boxes are inexact."""

BASELINE_OFFSET = 0.35
"""In letter sizes: distance of the baseline below the middle of a line."""

VERTICAL_RATIO = 1.5
"""Ratio of height to width from which a line is vertical and skipped."""

_FONT = Font(bold=False, italic=False, fixed=False)


class _PageOutcome(Enum):
    """What became of a scanned page, with the end of its warning."""

    READ = "of text; {its} text was recognised and may hold errors."
    EMPTY = "in which no text was found."
    LATE = (
        "of text and {was} not read, since recognising {them} would have taken too long; ask for {them} by page number."
    )
    FAILED = "of text and {was} not read, since recognition failed ({failure}); give a searchable file."
    NOT_INSTALLED = f"of text and {{was}} not read; give a searchable file, or install recognition: {INSTALL}."


def is_scanned(page: PageContent) -> bool:
    """Whether a page is an image of text."""
    if len(page.words) > SCANNED_WORDS:
        return False
    return any(compute_area(box) >= SCANNED_COVER * page.width * page.height > 0 for box in page.pictures)


class PageRecognizer:
    """Recognizes the scanned pages among the wanted ones within a time budget."""

    def __init__(self, document: Any, wanted: range, progress: Progress, *, seconds: float | None = None) -> None:
        self._document = document
        self._wanted = wanted
        self._progress = progress
        self._seconds = _compute_time_limit() if seconds is None else seconds
        self._spent = 0.0
        self._longest = 0.0
        """Duration of the slowest page."""
        self._failure = ""
        self._outcomes: dict[int, _PageOutcome] = {}

    def read(self, page: PageContent) -> None:
        """Mark a scanned page and add its recognized words."""
        page.scanned = is_scanned(page)
        if page.scanned and page.number - 1 in self._wanted:
            self._outcomes[page.number] = self._recognize_page(page)

    def list_warnings(self) -> Iterator[str]:
        """Yield warnings on the scanned pages."""
        for outcome in _PageOutcome:
            numbers = sorted(number for number, page_outcome in self._outcomes.items() if page_outcome is outcome)
            if numbers:
                yield _format_warning(outcome, numbers, self._failure)

    def _recognize_page(self, page: PageContent) -> _PageOutcome:
        if not all(map(find_spec, PACKAGES)):
            return _PageOutcome.NOT_INSTALLED
        if self._failure:
            return _PageOutcome.FAILED
        if self._spent + self._longest >= self._seconds:
            return _PageOutcome.LATE
        # It takes seconds per page, mostly before the first batch of pages ends.
        done, message = page.number - 1 - self._wanted[0], f"recognising page {page.number} of {len(self._document)}"
        self._progress(done, len(self._wanted), message)
        since = time.monotonic()
        try:
            return _PageOutcome.READ if self._run_ocr(page) else _PageOutcome.EMPTY
        except Exception as error:  # the other pages are still worth converting
            self._failure = type(error).__name__
            logger.warning("conversion.not_recognised", extra={"fields": {"page": page.number}}, exc_info=True)
            return _PageOutcome.FAILED
        finally:
            taken = time.monotonic() - since
            self._spent += taken
            self._longest = max(self._longest, taken)

    def _run_ocr(self, page: PageContent) -> bool:
        engine = _load_engine()
        drawn = self._document[page.number - 1]
        try:
            width, height = drawn.get_size()
            scale = min(DOTS_PER_INCH / 72, MAX_SIDE / max(width, height))
            found = engine(drawn.render(scale=scale).to_numpy(), return_word_box=True)
        finally:
            drawn.close()
        words = list(_make_words(_read_lines(found, scale)))
        if words:
            page.words, page.tags, page.width, page.height = words, {}, width, height
        return bool(words)


def _compute_time_limit() -> float:
    """Return a share of the remaining CPU time, which in a worker is that of the conversion."""
    limit, _ = resource.getrlimit(resource.RLIMIT_CPU)
    if limit == resource.RLIM_INFINITY:
        return DEFAULT_SECONDS
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return TIME_SHARE * (limit - usage.ru_utime - usage.ru_stime)


@cache
def _load_engine() -> Any:
    """Load the recognizer with explicit paths of the packaged models, so that it looks nowhere else."""
    # Read when numpy is loaded: a thread takes 40 MB of address space.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter:
        set_parameter(M_MMAP_THRESHOLD, LARGE_BYTES)
    import_module("cv2").setNumThreads(1)
    rapidocr = import_module("rapidocr")
    models = Path(str(rapidocr.__file__)).parent / "models"
    places = {f"{part}.model_path": str(_find_model(models, part.lower())) for part in ("Det", "Rec")}
    return rapidocr.RapidOCR(params=SETTINGS | places)


def _find_model(models: Path, part: str) -> Path:
    found = sorted(models.glob(f"*_{part}_*.onnx"))
    if not found:
        raise FileNotFoundError(f"{models} holds no model for {part}")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Line:
    """A recognized line, in points from the top left."""

    text: str
    left: float
    right: float
    middle: float
    height: float
    spans: Sequence[tuple[float, float]]
    """Left and right of each letter, without spaces."""


def _read_lines(found: Any, scale: float) -> Iterator[_Line]:
    """Yield the horizontal lines; a box is four corners, clockwise from the top left."""
    if not found.txts:
        return
    for text, corners, pieces in zip(found.txts, found.boxes, found.word_results, strict=True):
        points = [(float(x) / scale, float(y) / scale) for x, y in corners]
        (left, top), (right, _), (_, low), (_, bottom) = points
        height = bottom - top
        if len(text) > 1 and height >= VERTICAL_RATIO * (right - left):
            continue
        middle = (top + bottom + points[1][1] + low) / 4
        yield _Line(text, left, right, middle, height, _locate_letters(text, left, right, pieces, scale))


def _locate_letters(
    text: str, left: float, right: float, pieces: Sequence[Any], scale: float
) -> Sequence[tuple[float, float]]:
    """Return the positions of letters, interpolated from those of words."""
    located = [
        span
        for piece, _, corners in pieces
        for span in _space_evenly(piece, float(corners[0][0]) / scale, float(corners[1][0]) / scale)
    ]
    return located if len(located) == len("".join(text.split())) else _space_evenly(text, left, right)


def _space_evenly(text: str, left: float, right: float) -> list[tuple[float, float]]:
    step = (right - left) / max(len(text), 1)
    return [(left + step * at, left + step * (at + 1)) for at, letter in enumerate(text) if not letter.isspace()]


def _make_words(lines: Iterator[_Line]) -> Iterator[Word]:
    """Yield the words of all lines, with similar sizes unified."""
    kept = [line for line in lines if line.height > 0]
    usual = median(line.height for line in kept) if kept else 0.0
    for line in kept:
        alike = SAME_SIZE_RANGE[0] <= line.height / usual <= SAME_SIZE_RANGE[1]
        size = _round_to_half(LETTER_HEIGHT * (usual if alike else line.height))
        base = _round_to_half(line.middle + BASELINE_OFFSET * size)
        at = 0
        for token in line.text.split():
            left, right = line.spans[at][0], line.spans[at + len(token) - 1][1]
            at += len(token)
            yield Word(token, left, right, base, size, _FONT, -1)


def _round_to_half(points: float) -> float:
    return round(points * 2) / 2


def _format_warning(outcome: _PageOutcome, numbers: Sequence[int], failure: str) -> str:
    one = len(numbers) == 1
    was, its, them = ("was", "its", "it") if one else ("were", "their", "them")
    ending = outcome.value.format(was=was, its=its, them=them, failure=failure)
    return f"{format_pages(numbers)} {'a picture' if one else 'pictures'} {ending}"


def format_pages(numbers: Sequence[int]) -> str:
    """Return `Page 3 is` or `Pages 3–7, 9 are`."""
    if len(numbers) == 1:
        return f"Page {numbers[0]} is"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "Pages " + ", ".join(f"{start}" if start == end else f"{start}–{end}" for start, end in runs) + " are"
