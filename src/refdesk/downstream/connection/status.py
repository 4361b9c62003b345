"""Status of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["Starting", "Running", "Error", "Stopped"]


@dataclass(frozen=True, slots=True)
class Status:
    """A state, with a message for errors."""

    state: State
    message: str = ""

    @property
    def text(self) -> str:
        """The state as displayed: `Error` includes the message."""
        return f"{self.state}({self.message})" if self.message else self.state


STARTING, RUNNING, STOPPED = Status("Starting"), Status("Running"), Status("Stopped")
