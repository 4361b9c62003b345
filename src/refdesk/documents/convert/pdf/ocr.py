"""Scanned pages: pictures of text, whose words are recognised where the OCR extra is installed.

Its models come with the package, so that nothing is ever downloaded. It is imported when the first such page is met,
since that alone takes a second and 300 MB of addresses. What it finds are words like any other: the same layout pass
makes columns, paragraphs and headings of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from refdesk.documents.convert.pdf.fonts import Font
from refdesk.documents.convert.pdf.reading import PageContent, Word
from refdesk.documents.model import Box

logger = logging.getLogger(__name__)

PACKAGES = ("rapidocr", "onnxruntime", "cv2")
INSTALL = "pip install 'refdesk[ocr]'"

SCANNED_COVER = 0.5
"""Of a page: a picture that covers so much, on a page with hardly a word, is a picture of text."""

SCANNED_WORDS = 3
"""A scanner's stamp or a page number may be all the text on a scanned page."""

SECONDS = 40.0
"""For all pages of a document where nothing else bounds the time; a page of print takes 3 to 10."""

SHARE = 0.65
"""Of the time that the conversion is given: the last page may take longer than any before, and the rest takes some."""

DOTS_PER_INCH = 180
"""How pages are drawn: fewer blur small print, and more change nothing."""

MAX_SIDE = 2_000
"""Dots along the longer side of what is drawn: posters are drawn coarser."""

SETTINGS = {
    "Global.log_level": "critical",
    "Global.use_cls": False,  # it would tell which single lines stand on their heads
    "Global.max_side_len": MAX_SIDE,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Rec.rec_batch_num": 1,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "EngineConfig.onnxruntime.enable_cpu_mem_arena": False,
}
"""For the gigabyte of addresses that a worker has: lines are looked for in a smaller picture, of at most 960 dots, and
read one at a time from the larger one. That halves the time and the memory, and finds the same words."""

M_MMAP_THRESHOLD = -3
"""The parameter of glibc's allocator for the size from which memory goes back to the system as soon as it is free."""

LARGE_BYTES = 131_072
"""For that parameter: its value at the start, before glibc raises it. Left alone, pages come to 900 MB, not to 700."""

LETTERS = 0.82
"""Of the height of a recognised line: the size of its letters."""

ALIKE = (0.8, 1.25)
"""Times the usual height on the page: such lines are of one size, since boxes are drawn no more exactly."""

BASELINE = 0.35
"""Of the letter size: how far the baseline lies below the middle of a line."""

SIDEWAYS = 1.5
"""Times its width: a line that is so high runs up or down the page, and the page is not read so."""

_FONT = Font("", bold=False, italic=False, fixed=False)

Tell = Callable[[int], None]
"""Called with the number of the page that is about to be recognised."""


class _Fate(Enum):
    """What became of a scanned page."""

    READ = auto()
    EMPTY = auto()
    LATE = auto()
    FAILED = auto()
    NOT_INSTALLED = auto()


def is_scanned(page: PageContent) -> bool:
    """Whether the page is a picture of text."""
    if len(page.words) > SCANNED_WORDS:
        return False
    return any(_area(box) >= SCANNED_COVER * page.width * page.height > 0 for box in page.pictures)


class Recognition:
    """Reads the scanned pages among the wanted ones of a document, for as long as there is time."""

    def __init__(self, document: Any, wanted: range, tell: Tell, *, seconds: float | None = None) -> None:
        self._document = document
        self._wanted = wanted
        self._tell = tell
        self._clock = _Clock(_seconds_allowed() if seconds is None else seconds)
        self._failure = ""
        self._fates: dict[int, _Fate] = {}

    def read(self, page: PageContent) -> None:
        """Mark a page that is scanned as such, and put the words that it shows into it."""
        page.scanned = is_scanned(page)
        if page.scanned and page.number - 1 in self._wanted:
            self._fates[page.number] = self._fate_of(page)

    def told(self) -> Iterator[str]:
        """What became of the scanned pages, in sentences."""
        for fate in _Fate:
            numbers = sorted(number for number, met in self._fates.items() if met is fate)
            if numbers:
                yield _told(fate, numbers, self._failure)

    def _fate_of(self, page: PageContent) -> _Fate:
        if not all(map(find_spec, PACKAGES)):
            return _Fate.NOT_INSTALLED
        if self._failure:
            return _Fate.FAILED
        if not self._clock.has_time_for_another():
            return _Fate.LATE
        self._tell(page.number)
        try:
            with self._clock:
                return _Fate.READ if self._recognise(page) else _Fate.EMPTY
        except Exception as error:  # whatever the extra raises, the other pages are worth having
            self._failure = type(error).__name__
            logger.warning("conversion.not_recognised", extra={"fields": {"page": page.number}}, exc_info=True)
            return _Fate.FAILED

    def _recognise(self, page: PageContent) -> bool:
        engine = _engine()
        drawn = self._document[page.number - 1]
        try:
            width, height = drawn.get_size()
            scale = min(DOTS_PER_INCH / 72, MAX_SIDE / max(width, height))
            found = engine(drawn.render(scale=scale).to_numpy(), return_word_box=True)
        finally:
            drawn.close()
        words = list(_words(_lines(found, scale)))
        if words:
            page.words, page.tags, page.width, page.height = words, {}, width, height
        return bool(words)


class _Clock:
    """How much of the time is spent, and how long the slowest page took."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._longest = 0.0
        self._since = 0.0

    def has_time_for_another(self) -> bool:
        return self._spent + self._longest < self._seconds

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        taken = time.monotonic() - self._since
        self._spent += taken
        self._longest = max(self._longest, taken)


def _seconds_allowed() -> float:
    """A share of what this process may still compute, which in a worker is what the conversion is given."""
    limit, _ = resource.getrlimit(resource.RLIMIT_CPU)
    if limit == resource.RLIM_INFINITY:
        return SECONDS
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return SHARE * (limit - usage.ru_utime - usage.ru_stime)


@cache
def _engine() -> Any:
    """The recogniser with the models of its package; named here, they are not looked for anywhere else."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded: a thread takes 40 MB of addresses
    _give_freed_memory_back()
    import_module("cv2").setNumThreads(1)
    rapidocr = import_module("rapidocr")
    models = Path(str(rapidocr.__file__)).parent / "models"
    places = {f"{part}.model_path": str(_only(models, part.lower())) for part in ("Det", "Rec")}
    return rapidocr.RapidOCR(params=SETTINGS | places)


def _give_freed_memory_back() -> None:
    """Where the C library is glibc; others do by themselves."""
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter:
        set_parameter(M_MMAP_THRESHOLD, LARGE_BYTES)


def _only(models: Path, part: str) -> Path:
    found = sorted(models.glob(f"*_{part}_*.onnx"))
    if not found:
        raise FileNotFoundError(f"{models} holds no model for {part}")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as it was recognised, in points from the top left."""

    text: str
    left: float
    right: float
    middle: float
    height: float
    spans: Sequence[tuple[float, float]]
    """Left and right of each letter, spaces left out."""


def _lines(found: Any, scale: float) -> Iterator[_Line]:
    """The lines that run across; a box is four corners, from the top left around."""
    if not found.txts:
        return
    for text, corners, pieces in zip(found.txts, found.boxes, found.word_results, strict=True):
        points = [(float(x) / scale, float(y) / scale) for x, y in corners]
        (left, top), (right, _), (_, low), (_, bottom) = points
        height = bottom - top
        if len(text) > 1 and height >= SIDEWAYS * (right - left):
            continue
        middle = (top + bottom + points[1][1] + low) / 4
        yield _Line(text, left, right, middle, height, _spans(text, left, right, pieces, scale))


def _spans(text: str, left: float, right: float, pieces: Sequence[Any], scale: float) -> Sequence[tuple[float, float]]:
    """Where the letters stand: told for words, or for single letters of scripts without spaces."""
    told = [
        span
        for piece, _, corners in pieces
        for span in _evenly(piece, float(corners[0][0]) / scale, float(corners[1][0]) / scale)
    ]
    return told if len(told) == len("".join(text.split())) else _evenly(text, left, right)


def _evenly(text: str, left: float, right: float) -> list[tuple[float, float]]:
    step = (right - left) / max(len(text), 1)
    return [(left + step * at, left + step * (at + 1)) for at, letter in enumerate(text) if not letter.isspace()]


def _words(lines: Iterator[_Line]) -> Iterator[Word]:
    """The words of all lines; what differs by no more than chance is set to one size."""
    kept = [line for line in lines if line.height > 0]
    usual = median(line.height for line in kept) if kept else 0.0
    for line in kept:
        alike = ALIKE[0] <= line.height / usual <= ALIKE[1]
        size = _halves(LETTERS * (usual if alike else line.height))
        base = _halves(line.middle + BASELINE * size)
        at = 0
        for token in line.text.split():
            left, right = line.spans[at][0], line.spans[at + len(token) - 1][1]
            at += len(token)
            yield Word(token, left, right, base, size, _FONT, -1)


def _halves(points: float) -> float:
    return round(points * 2) / 2


def _told(fate: _Fate, numbers: Sequence[int], failure: str) -> str:
    one = len(numbers) == 1
    pictures = f"{pages_are(numbers)} {'a picture' if one else 'pictures'}"
    was, its, them = ("was", "its", "it") if one else ("were", "their", "them")
    match fate:
        case _Fate.READ:
            return f"{pictures} of text; {its} text was recognised and may hold errors."
        case _Fate.EMPTY:
            return f"{pictures} in which no text was found."
        case _Fate.LATE:
            return (
                f"{pictures} of text and {was} not read, since recognising {them} would have taken too long; "
                f"ask for {them} by page number."
            )
        case _Fate.FAILED:
            return (
                f"{pictures} of text and {was} not read, since recognition failed ({failure}); give a searchable file."
            )
        case _Fate.NOT_INSTALLED:
            return f"{pictures} of text and {was} not read; give a searchable file, or install recognition: {INSTALL}."


def pages_are(numbers: Sequence[int]) -> str:
    """`Page 3 is` or `Pages 3–7, 9 are`."""
    if len(numbers) == 1:
        return f"Page {numbers[0]} is"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "Pages " + ", ".join(f"{start}" if start == end else f"{start}–{end}" for start, end in runs) + " are"


def _area(box: Box) -> float:
    left, top, right, bottom = box
    return max(right - left, 0.0) * max(bottom - top, 0.0)
