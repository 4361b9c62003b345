"""What the command line says with its exit code: the one place where the codes are, with what each means."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """An exit code; the reference page about them is made from this."""

    DONE = 0, "The command did what it was asked to."
    FAILED = 1, "It was tried and failed, or what was looked for is not there; `refdesk doctor` found a fault."
    MISUSED = 2, "The command line or the configuration is wrong, or a question could not be asked; nothing was done."
    INTERRUPTED = 130, "Ctrl-C ended it."
    READER_LEFT = 141, "Who read its output stopped before the end, as `head` does."

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """A number that knows what it means."""
        one = int.__new__(cls, code)
        one._value_ = code
        one.meaning = meaning
        return one
