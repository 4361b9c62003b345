"""The manifest: which segments make up the index, which of their documents are gone, and up to which change.

It is replaced in one step, so that whoever opens the index finds it as some commit left it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from refdesk.engines.embedded.damage import IndexDamaged

MANIFEST = "manifest"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the index."""

    model: str = ""
    dimensions: int = 0
    mark: int = 0
    segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The files, each with the numbers of its runs whose document was removed."""

    def encode(self) -> bytes:
        """The manifest as it is on disk: a checksum, and the rest under it."""
        body = orjson.dumps(
            {
                "format": FORMAT,
                "model": self.model,
                "dimensions": self.dimensions,
                "mark": self.mark,
                "segments": self.segments,
            }
        )
        return b"%08x\n%b\n" % (zlib.crc32(body), body)


def decode(data: bytes, path: Path) -> Manifest:
    """What `encode` made; the checksum vouches for the shape of what is inside."""
    checksum, _, body = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(body):
        raise IndexDamaged(f"{path} is not what was written")
    stored = orjson.loads(body)
    if stored["format"] != FORMAT:
        raise IndexDamaged(f"{path} was written by another version of Refdesk")
    segments = {name: tuple(dead) for name, dead in stored["segments"].items()}
    return Manifest(stored["model"], stored["dimensions"], stored["mark"], segments)


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Make this the state of the index, for good: it and the segments that it names are on disk afterwards."""
    sync_folder(folder)
    draft = folder / f"{MANIFEST}.new"
    with draft.open("wb") as file:
        file.write(manifest.encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MANIFEST)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """See the names in a folder onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
