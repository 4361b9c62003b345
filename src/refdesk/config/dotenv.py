"""The variables of a `.env` file: `NAME=value` lines, optionally quoted or with `export`. Nothing is expanded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from refdesk.config.messages import Fault

FILE_NAME = ".env"

_LINE = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>(?!['"]).*?))\s*(?:(?<!\S)\#.*)?""",
    re.ASCII | re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class DotEnv:
    """The variables of a file, and what couldn't be read of it."""

    variables: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def read_dotenv(path: Path) -> DotEnv:
    """Read a `.env` file. It may belong to another program, so lines of another form are only reported."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        return DotEnv()
    except OSError as error:
        return DotEnv(faults=(Fault(path.name, "", f"is ignored, as it cannot be read: {error.strerror}"),))
    except ValueError:
        return DotEnv(faults=(Fault(path.name, "", "is ignored, as it is not UTF-8 text"),))
    variables: dict[str, str] = {}
    faults: list[Fault] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            faults.append(Fault(path.name, f"line {number}", "is ignored; write NAME=value"))
            continue
        double = match["double"]
        if double is not None:
            double = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), double)
        variables[match["name"]] = next(
            value for value in (match["single"], double, match["plain"]) if value is not None
        )
    return DotEnv(variables, tuple(faults))
