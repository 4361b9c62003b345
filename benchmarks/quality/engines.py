"""Converters, each behind one function from a file to Markdown: `engines.py ENGINE TARGET FILE...`.

Runs as a script in whatever environment has the converter, so it imports nothing but the standard library until one is
asked for. For every file it writes TARGET/<name>.md and a line of JSON with the CPU time that the conversion took, of
the process with its threads and children.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

Engine = Callable[[Path], str]

SECONDS_PER_FILE = 120
"""CPU time is what counts; this only ends what would never end."""
FIRST_PAGE = "refdesk-first-page"

SHORT_MS = 100.0
"""Of CPU time: below it the noise of a shared machine is as large as what is measured."""


def refdesk() -> Engine:
    """Our own."""
    convert = import_module("refdesk.documents.convert").convert
    to_markdown = import_module("refdesk.documents.export.markdown").to_markdown
    return lambda path: str(to_markdown(convert(path.read_bytes(), path.name)))


def first_page() -> Engine:
    """Only the first page of what may be long."""
    package = import_module("refdesk.documents.convert")
    to_markdown = import_module("refdesk.documents.export.markdown").to_markdown
    pages = package.PageRange(1, 1)
    return lambda path: str(to_markdown(package.convert(path.read_bytes(), path.name, pages=pages)))


def markitdown() -> Engine:
    """Everything through HTML or plain text."""
    converter = import_module("markitdown").MarkItDown()
    return lambda path: str(converter.convert(str(path)).markdown)


def pypdf() -> Engine:
    """Plain text, in pure Python."""
    reader = import_module("pypdf").PdfReader
    return lambda path: "\n".join(page.extract_text() for page in reader(str(path)).pages)


def docling() -> Engine:
    """Without models: none can be had from a package registry."""
    converter = import_module("docling.document_converter")
    pdf = import_module("docling.datamodel.base_models").InputFormat.PDF
    pipeline = import_module("docling.pipeline.native_pdf_pipeline")
    options = pipeline.NativePdfPipelineOptions()
    chosen = converter.PdfFormatOption(pipeline_cls=pipeline.NativePdfPipeline, pipeline_options=options)
    everything = converter.DocumentConverter(format_options={pdf: chosen})
    return lambda path: str(everything.convert(str(path)).document.export_to_markdown())


def liteparse() -> Engine:
    """PDFium with a layout of its own, in Rust."""
    parser = import_module("liteparse").LiteParse(ocr_enabled=False, output_format="markdown", quiet=True)
    return lambda path: str(parser.parse(str(path)).text)


def html_to_markdown() -> Engine:
    """HTML only, in Rust."""
    convert = import_module("html_to_markdown").convert
    return lambda path: _content(convert(path.read_text("utf-8", "replace")))


def pandoc() -> Engine:
    """A program, so that its start counts too."""
    return lambda path: (
        subprocess.run(
            ["pandoc", "--to=gfm", "--wrap=none", str(path)], check=True, capture_output=True, text=True
        ).stdout
    )


def anydoc() -> Engine:
    """Office formats, in Rust; we stand on it, so it is the least that ours has to reach."""
    convert = import_module("anydoc").to_markdown
    return lambda path: str(convert(str(path)))


def office_oxide() -> Engine:
    """Office formats, in Rust; the other one that we stand on."""
    convert = import_module("office_oxide").to_markdown
    return lambda path: str(convert(str(path)))


ENGINES: dict[str, Callable[[], Engine]] = {
    "refdesk": refdesk,
    "markitdown": markitdown,
    "pypdf": pypdf,
    "docling": docling,
    "liteparse": liteparse,
    "html-to-markdown": html_to_markdown,
    "pandoc": pandoc,
    "anydoc": anydoc,
    "office-oxide": office_oxide,
}


def main() -> None:
    """Convert every file, the first one twice: whatever is loaded on first use is not part of a conversion."""
    name, target, *files = sys.argv[1:]
    signal.signal(signal.SIGALRM, _too_long)
    results = os.fdopen(os.dup(1), "w")
    with redirect_stdout(sys.stderr):
        before = cpu_seconds()
        engine = first_page() if name == FIRST_PAGE else ENGINES[name]()
        print(json.dumps({"load_ms": (cpu_seconds() - before) * 1000}), file=results, flush=True)
        _converted(engine, Path(files[0]))
        for file in map(Path, files):
            result = _least(engine, file)
            Path(target, f"{file.stem}.md").write_text(result.pop("markdown"), "utf-8")
            print(json.dumps({"name": file.stem, **result}), file=results, flush=True)


def _least(engine: Engine, file: Path) -> dict[str, Any]:
    """A conversion, and two more where it is short; the least time counts, since what else goes on only adds to it."""
    result = _converted(engine, file)
    if result["error"] is None and result["cpu_ms"] < SHORT_MS:
        result["cpu_ms"] = min(result["cpu_ms"], *(_converted(engine, file)["cpu_ms"] for _ in range(2)))
    return result


def cpu_seconds() -> float:
    """User and system time so far, of this process and of those it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _converted(engine: Engine, path: Path) -> dict[str, Any]:
    before = cpu_seconds()
    signal.alarm(SECONDS_PER_FILE)
    error = ""
    try:
        markdown = engine(path)
    except Exception as failure:  # noqa: BLE001 (a converter may fail with anything; that is its result)
        markdown, error = "", f"{type(failure).__name__}: {failure}"[:200]
    finally:
        signal.alarm(0)
    return {"cpu_ms": (cpu_seconds() - before) * 1000, "error": error, "markdown": markdown}


def _content(answer: Any) -> str:
    """Some releases answer with a string, others with an object that holds it."""
    return answer if isinstance(answer, str) else str(answer.content)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"took more than {SECONDS_PER_FILE} s")


if __name__ == "__main__":
    main()
