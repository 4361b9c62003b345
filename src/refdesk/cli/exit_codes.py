"""Exit codes of the command line and their meanings."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code with its description. The reference page is generated from this."""

    OK = 0, "The command did what it was asked to."
    FAILED = 1, "It was tried and failed, or what was looked for is not there; `refdesk doctor` found a fault."
    USAGE_ERROR = (
        2,
        "The command line or the configuration is wrong, or a question could not be asked; nothing was done.",
    )
    INTERRUPTED = 130, "Ctrl-C ended it."
    BROKEN_PIPE = 141, "Who read its output stopped before the end, as `head` does."

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member whose value is the code alone."""
        one = int.__new__(cls, code)
        one._value_ = code
        one.meaning = meaning
        return one
