"""Manifest of the vector index: its segments, their deleted documents, and the last change.

It is replaced atomically, so that readers always see a complete commit.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.support.fs import fsync_folder, replace_file

MANIFEST = "manifest"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the index."""

    model: str = ""
    dimensions: int = 0
    mark: int = 0
    segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Segment files, each with the numbers of runs whose document was deleted."""

    def encode(self) -> bytes:
        """Serialize the manifest, preceded by a checksum."""
        body = orjson.dumps({"format": FORMAT, **asdict(self)})
        return b"%08x\n%b\n" % (zlib.crc32(body), body)


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """Parse a manifest. The checksum also guarantees the structure of the content."""
    checksum, _, body = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(body):
        raise IndexDamaged(f"{path} is corrupt: its checksum doesn't match")
    stored = orjson.loads(body)
    if stored["format"] != FORMAT:
        raise IndexDamaged(f"{path} was written by another version of Refdesk")
    segments = {name: tuple(dead) for name, dead in stored["segments"].items()}
    return Manifest(stored["model"], stored["dimensions"], stored["mark"], segments)


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably, including the segments it names."""
    fsync_folder(folder)
    replace_file(folder / MANIFEST, manifest.encode())
