"""Safe file names for downloads, from the response header or the URL."""

from __future__ import annotations

import re
import unicodedata
from email.message import Message
from pathlib import PurePosixPath
from urllib.parse import unquote

MAX_NAME_CHARACTERS = 120
"""Long enough for any title. The name is displayed and its suffix inspected; nothing is stored under it."""

MAX_SUFFIX_CHARACTERS = 12
"""A longer part after the last dot belongs to the name."""

MAX_HEADER_CHARACTERS = 2000
"""Limit of a `Content-Disposition` header."""

NO_NAME = "index"
"""Name of the page at the root of a site."""


def choose_download_name(disposition: str, path: str) -> str:
    """Return the name from a `Content-Disposition` header, or the last part of the URL's path."""
    message = Message()
    message["Content-Disposition"] = disposition[:MAX_HEADER_CHARACTERS]
    try:
        stated = message.get_filename("")
    except ValueError:  # a charset that cannot decode
        stated = ""
    return clean_name(stated) or clean_name(unquote(path)) or NO_NAME


def clean_name(name: str) -> str:
    """Reduce a name to one path component of limited length without control characters, or to an empty string."""
    last = re.split(r"[/\\]", name)[-1]
    visible = "".join(character for character in last if unicodedata.category(character)[0] != "C")
    name = unicodedata.normalize("NFC", " ".join(visible.split())).strip(". ")
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    suffix = PurePosixPath(name).suffix
    if len(suffix) > MAX_SUFFIX_CHARACTERS:
        suffix = ""
    return name[: MAX_NAME_CHARACTERS - len(suffix)].rstrip(". ") + suffix
