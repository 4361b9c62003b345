"""Number formats of spreadsheets: 0.256 in the format `0.0%` is 25.6%.

Formats are compiled once and used for many cells. What depends on the reader's locale, such as the short date, becomes
ISO 8601.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Final

BUILT_IN: Final[Mapping[int, str]] = {
    0: "General",
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    9: "0%",
    10: "0.00%",
    11: "0.00E+00",
    12: "# ?/?",
    13: "# ??/??",
    14: "yyyy-mm-dd",
    15: "d-mmm-yy",
    16: "d-mmm",
    17: "mmm-yy",
    18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM",
    20: "h:mm",
    21: "h:mm:ss",
    22: "yyyy-mm-dd hh:mm",
    37: "#,##0 ;(#,##0)",
    38: "#,##0 ;(#,##0)",
    39: "#,##0.00;(#,##0.00)",
    40: "#,##0.00;(#,##0.00)",
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss",
    48: "##0.0E+0",
    49: "@",
}
"""Formats that files refer to by number without defining them."""

MAX_DATE_NUMBER: Final = 2_958_466
"""The day after 9999-12-31; larger numbers aren't dates."""

Render = Callable[[float], str]

_TOKEN = re.compile(
    r"""(?P<quoted>"[^"]*"?)|\\(?P<escaped>.)|_(?P<skip>.)|\*(?P<fill>.)|(?P<elapsed>\[(?:h+|m+|s+)\])"""
    r"""|\[\$(?P<currency>[^\]\-]*)[^\]]*\]|\[(?P<condition>[<>=]+[^\]]*)\]|(?P<bracket>\[[^\]]*\])"""
    r"""|(?P<half>AM/PM|A/P)|(?P<general>General)|(?P<exponent>E[+-]0+)|(?P<subsecond>(?<=[s\]])\.0+)"""
    r"""|(?P<date>y+|m+|d+|h+|s+)|(?P<digits>[0#?,.]+(?:\s*[?#0]*/[?#0-9]+)?)|(?P<other>.)""",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)\s*(-?[\d.]+)")
_COMPARISONS = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "<>": ne}
_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


_Section = list[_Token]
"""One of up to four sections of a format: positive, negative, zero, text."""


def format_general(value: float) -> str:
    """Format a number without a format, with all certain digits."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.15g}".replace("e", "E")


def format_value(text: str, code: str, *, from_1904: bool = False) -> str:
    """Format the text of a number; other text is returned unchanged."""
    try:
        value = float(text)
        return format_general(value) if code == "General" else compile_format(code, from_1904=from_1904)(value)
    except (ValueError, OverflowError):
        return text


@lru_cache(maxsize=1024)
def compile_format(code: str, *, from_1904: bool = False) -> Render:
    """Compile a format to a function; some workbooks count days from 1904."""
    sections = [_tokenize(part) for part in _split_sections(code)][:4]

    def render(value: float) -> str:
        section, shown = _choose_section(sections, value)
        if any(token.kind in ("date", "elapsed", "half") for token in section):
            return _format_date(section, shown, from_1904)
        return _format_number(section, shown)

    return render


def _split_sections(code: str) -> list[str]:
    parts = [""]
    for piece in re.findall(r'"[^"]*"?|\\.|.', code, re.DOTALL):
        if piece == ";":
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _tokenize(section: str) -> _Section:
    found = ((match.lastgroup or "other", match) for match in _TOKEN.finditer(section))
    literals = ("quoted", "escaped", "currency")
    return [_Token("text", m[kind].strip('"')) if kind in literals else _Token(kind, m[kind]) for kind, m in found]


def _parse_condition(section: _Section) -> tuple[str, float] | None:
    """Return the explicit condition of the section, or None."""
    found = next((token.text for token in section if token.kind == "condition"), "")
    match = _CONDITION.match(found)
    return (match[1], float(match[2])) if match else None


def _choose_section(sections: list[_Section], value: float) -> tuple[_Section, float]:
    """Return the section for a value, and the value to display: the section for negative numbers has its own sign."""
    for section in sections:
        condition = _parse_condition(section)
        if condition and _COMPARISONS[condition[0]](value, condition[1]):
            return section, value
    plain = [section for section in sections if not _parse_condition(section)] or sections
    if value < 0 and len(plain) > 1:
        return plain[1], -value
    if value == 0 and len(plain) > 2:
        return plain[2], value
    return plain[0], value


def _format_number(section: _Section, value: float) -> str:
    kinds = {token.kind for token in section}
    if "general" in kinds or not kinds & {"digits", "exponent"}:
        is_shown = "general" in kinds or not kinds or any(token.text == "@" for token in section)
        return _insert_number(section, format_general(value) if is_shown else "")
    value *= 100 ** sum(token.text.count("%") for token in section if token.kind == "other")
    pattern = next((token.text for token in section if token.kind == "digits"), "0")
    exponent = next((token.text for token in section if token.kind == "exponent"), "")
    return _insert_number(section, _format_digits(pattern, exponent, value))


def _insert_number(section: _Section, number: str) -> str:
    parts: list[str] = []
    for token in section:
        if token.kind in ("digits", "general") or token.text == "@":
            parts.append(number)
            number = ""
        elif token.kind in ("text", "other"):
            parts.append(token.text)
    return ("".join(parts) or number).strip()


def _format_digits(pattern: str, exponent: str, value: float) -> str:
    if "/" in pattern:
        return _format_fraction(pattern, value)
    whole, _, decimals = pattern.partition(".")
    scaled = value / 1000 ** (len(pattern) - len(pattern.rstrip(",")))
    places = len(decimals.rstrip(","))
    if exponent:
        mantissa, _, power = f"{scaled:.{places}e}".partition("e")
        sign = power[0] if power[0] == "-" or "+" in exponent else ""
        return f"{mantissa}E{sign}{power[1:].lstrip('0').zfill(len(exponent) - 2)}"
    grouped = "," in whole.rstrip(",")
    text = f"{abs(scaled):{',' if grouped else ''}.{places}f}"
    sign = "-" if scaled < 0 and float(text.replace(",", "")) else ""
    # Drop zeros where the pattern has `#`, and pad to its number of `0`.
    integer, _, fraction = text.partition(".")
    needed = len(decimals.rstrip("#,"))
    fraction = fraction[:needed] + fraction[needed:].rstrip("0")
    integer = "" if integer == "0" and "0" not in whole else integer.zfill(whole.count("0"))
    return sign + (f"{integer}.{fraction}" if fraction or (integer == "" and decimals) else integer or "0")


def _format_fraction(pattern: str, value: float) -> str:
    denominator = pattern.rpartition("/")[2]
    if denominator.isdecimal() and int(denominator):
        closest = Fraction(round(abs(value) * int(denominator)), int(denominator))
    else:
        closest = Fraction(abs(value)).limit_denominator(10 ** min(len(denominator), 4) - 1)
    whole, rest = divmod(closest, 1)
    parts = [str(whole)] if whole or not rest else []
    parts += [f"{rest.numerator}/{rest.denominator}"] if rest else []
    return ("-" if value < 0 else "") + " ".join(parts)


def _format_date(section: _Section, value: float, from_1904: bool) -> str:
    moment = to_datetime(value, from_1904=from_1904)
    if moment is None:
        return format_general(value)
    halves = any(token.kind == "half" for token in section)
    parts: list[str] = []
    previous = ""
    for index, token in enumerate(section):
        if token.kind == "date":
            following = (other for other in section[index + 1 :] if other.kind in ("date", "elapsed"))
            next_unit = next((other.text.strip("[")[0].lower() for other in following), "")
            minutes = token.text[0] in "mM" and (previous == "h" or next_unit == "s")
            parts.append(_format_date_part("n" * len(token.text) if minutes else token.text.lower(), moment, halves))
            previous = token.text[0].lower()
        elif token.kind == "elapsed":
            previous = token.text[1].lower()
            per_unit = {"h": 3600, "m": 60, "s": 1}[previous]
            parts.append(f"{round(value * 86_400) // per_unit:0{len(token.text) - 2}d}")
        elif token.kind == "half":
            parts.append("AM" if moment.hour < 12 else "PM")
        elif token.kind == "subsecond":
            parts.append(f".{moment.microsecond:06d}"[: len(token.text)])
        elif token.kind in ("text", "other", "digits"):
            parts.append(token.text)
    return "".join(parts).strip()


def to_datetime(value: float, *, from_1904: bool = False) -> datetime | None:
    """Convert a date number to a datetime, or None if out of range."""
    if not 0 <= value < MAX_DATE_NUMBER:
        return None
    # Excel treats 1900 as a leap year: before February 29th, the count starts a day later.
    epoch = datetime(1904, 1, 1) if from_1904 else datetime(1899, 12, 30 if value >= 60 else 31)
    return epoch + timedelta(milliseconds=round(value * 86_400_000))


def _format_date_part(code: str, moment: datetime, halves: bool) -> str:
    hour = (moment.hour % 12 or 12) if halves else moment.hour
    match code[0], len(code):
        case "y", length:
            return f"{moment.year:04d}" if length > 2 else f"{moment.year % 100:02d}"
        case "m", length if length > 2:
            name = _MONTHS[moment.month - 1]
            return {3: name[:3], 5: name[0]}.get(length, name)
        case "d", length if length > 2:
            name = _DAYS[moment.weekday()]
            return name[:3] if length == 3 else name
        case unit, length:
            units = {"m": moment.month, "d": moment.day, "h": hour, "n": moment.minute, "s": moment.second}
            return f"{units[unit]:0{length}d}"
