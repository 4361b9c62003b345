"""How it stands with a connection, as people and programs are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["Starting", "Running", "Error", "Stopped"]


@dataclass(frozen=True, slots=True)
class Status:
    """A state, and why it is so where that is not plain."""

    state: State
    message: str = ""

    @property
    def text(self) -> str:
        """As it is shown: `Error` says why."""
        return f"{self.state}({self.message})" if self.message else self.state


STARTING, RUNNING, STOPPED = Status("Starting"), Status("Running"), Status("Stopped")
