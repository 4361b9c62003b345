"""Exit codes of the command line and their meanings."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code with its description. The reference page is generated from this."""

    OK = 0, "The command succeeded."
    FAILED = 1, "The command failed, something was not found, or `refdesk doctor` found a problem."
    USAGE_ERROR = (
        2,
        "The command line or the configuration is invalid, or the command needs confirmation. Nothing was done.",
    )
    INTERRUPTED = 130, "The command was interrupted with Ctrl-C."
    BROKEN_PIPE = 141, "The reader of the output closed the pipe early, as `head` does."

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member whose value is the code alone."""
        one = int.__new__(cls, code)
        one._value_ = code
        one.meaning = meaning
        return one
