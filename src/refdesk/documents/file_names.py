"""The name under which a download is kept in mind: what its server or its URL calls it, made harmless."""

from __future__ import annotations

import re
import unicodedata
from email.message import Message
from pathlib import PurePosixPath
from urllib.parse import unquote

MAX_NAME_CHARACTERS = 120
"""Long enough for any title. The name is shown and looked at for its suffix; nothing is stored under it."""

MAX_SUFFIX_CHARACTERS = 12
"""What follows the last dot is a kind of file up to this length, and part of the name beyond."""

MAX_HEADER_CHARACTERS = 2000
"""Of a `Content-Disposition`; what a server puts behind is not a name."""

NO_NAME = "index"
"""For a download that nobody named: the page at the root of a site."""


def choose_download_name(disposition: str, path: str) -> str:
    """The name in a `Content-Disposition` header, or else the last part of the URL's path."""
    return clean_name(_parse_disposition(disposition)) or clean_name(unquote(path)) or NO_NAME


def _parse_disposition(disposition: str) -> str:
    message = Message()
    message["Content-Disposition"] = disposition[:MAX_HEADER_CHARACTERS]
    try:
        return message.get_filename("")
    except ValueError:  # a charset that cannot decode
        return ""


def clean_name(name: str) -> str:
    """One path component of bounded length, without control or format characters; empty when nothing is left."""
    last = re.split(r"[/\\]", name)[-1]
    visible = "".join(character for character in last if unicodedata.category(character)[0] != "C")
    return _shorten(unicodedata.normalize("NFC", " ".join(visible.split())).strip(". "))


def _shorten(name: str) -> str:
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    suffix = PurePosixPath(name).suffix
    if len(suffix) > MAX_SUFFIX_CHARACTERS:
        suffix = ""
    return name[: MAX_NAME_CHARACTERS - len(suffix)].rstrip(". ") + suffix
