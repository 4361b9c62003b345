"""Value types of settings: what each accepts, and how it is masked.

A validator raises ValueError with what was expected, phrased to follow "is not".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

MASK = "********"

ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+")
HOST = re.compile(r"[^\s/?#@]+")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEX_DIGITS = re.compile(r"[0-9A-Fa-f]{64}")
VARIABLE_NAME = re.compile(r"[^=\0]+")

YEAR_SECONDS = 31_536_000
"""Upper bound for durations: longer ones overflow the timers of some event loops."""


class ConfigSection(BaseModel):
    """Base of all configuration models."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def setting(default: Any, description: str, **limits: Any) -> Any:
    """Declare a field of a configuration model."""
    return Field(default, description=description, **limits)


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a numeric setting."""

    name: str


class Url(SecretStr):
    """A URL whose string form hides its credentials; `get_secret_value()` returns it in full."""

    def _display(self) -> str:
        return mask_url(self.get_secret_value())


def mask_url(url: str) -> str:
    """Mask the credentials and query of a URL. Accepts any text."""
    credentials, at, rest = url.rpartition("@")
    rest = re.sub(r"[?#].*", f"?{MASK}", rest, flags=re.DOTALL)
    if not at:
        return rest
    scheme, separator, login = credentials.rpartition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}:{MASK}@{rest}" if separator and colon else f"{scheme}{separator}{MASK}@{rest}"


def is_encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: undecodable bytes in the environment become surrogates, which can't."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def split_list(value: Any) -> Any:
    """Parse a text that is a JSON list or separated by commas; return any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{", '"')):
        return split_commas(value)
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError('a JSON list of texts, such as ["one", "two"]; or separate them with commas')
    return found


def split_commas(value: Any) -> Any:
    """Split comma-separated text into a list; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    return [item for item in map(str.strip, value.split(",")) if item]


def _reject_bool(value: Any) -> Any:
    # `bool` is a subclass of `int`: `port: yes` would become port 1.
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _check_path(path: Path | None) -> Path | None:
    if "\0" in str(path):
        raise ValueError("a path")
    try:
        return path.expanduser() if path else path
    except RuntimeError:
        raise ValueError("a path whose home folder is known") from None


def _normalize_network(value: str) -> str:
    try:
        return str(ip_network(value.strip(), strict=False))
    except ValueError:
        raise ValueError("an address or network such as 10.0.0.0/8") from None


def _require(expected: str, is_valid: Callable[[str], object]) -> AfterValidator:
    """Return a validator of plain or secret text that may be None."""

    def check(value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and not is_valid(text):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


def has_scheme(url: str, *schemes: str) -> bool:
    """Whether a text is a URL with a host and one of the schemes."""
    try:
        parts = urlsplit(url)
        # Reading `port` validates it.
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


AnyCase = BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)
"""Makes a choice case-insensitive."""

_Blank = BeforeValidator(lambda value: None if isinstance(value, str) and not value.strip() else value)
"""Makes blank text None."""

_Split = BeforeValidator(split_list)
_NoNull = _require("text without null characters", lambda text: "\0" not in text)
_Path = AfterValidator(_check_path)
_Host = Annotated[str, _require("a host name or address", HOST.fullmatch), AfterValidator(str.lower)]
_Origin = Annotated[
    str,
    AfterValidator(lambda text: text.lower().removesuffix("/")),
    _require("an origin such as https://app.example.com, without a path", ORIGIN.fullmatch),
]
_VariableName = Annotated[str, _require("the name of an environment variable", VARIABLE_NAME.fullmatch)]
_HeaderName = Annotated[str, _require("the name of an HTTP header", HEADER_NAME.fullmatch)]
_HeaderValue = Annotated[SecretStr, _require("a single line of printable text", str.isprintable)]
_Time = Annotated[
    float, Field(allow_inf_nan=False), BeforeValidator(_reject_bool), Unit("seconds"), Field(le=YEAR_SECONDS)
]

Whole = Annotated[int, BeforeValidator(_reject_bool)]
OptionalPort = Annotated[int | None, BeforeValidator(_reject_bool)]
Bytes = Annotated[int, BeforeValidator(_reject_bool), Unit("bytes")]
Seconds = Annotated[_Time, Field(gt=0)]
SecondsOrNone = Annotated[_Time, Field(ge=0)]
"""Zero disables what the duration applies to."""
Address = Annotated[_Host, AfterValidator(lambda host: host.removeprefix("[").removesuffix("]"))]
OptionalText = Annotated[str | None, _Blank]
OptionalPath = Annotated[Path | None, _Blank, _Path]
OptionalSecret = Annotated[SecretStr | None, _Blank]
OptionalWebUrl = Annotated[
    Url | None, _Blank, _require("a URL such as http://localhost:7272", lambda url: has_scheme(url, "http", "https"))
]
ServerUrl = Annotated[
    Url | None,
    _Blank,
    _require("a URL such as https://example.com/mcp", lambda url: has_scheme(url, "http", "https", "ws", "wss")),
]
RedisUrl = Annotated[
    Url,
    _require(
        "a URL such as redis://localhost:6379",
        lambda url: url.startswith("unix://") or has_scheme(url, "redis", "rediss"),
    ),
]
Key = Annotated[SecretStr | None, _require("a key of at least one character", lambda key: key and is_encodable(key))]
Sha256 = Annotated[SecretStr | None, _require("64 hexadecimal digits", HEX_DIGITS.fullmatch)]
Texts = Annotated[tuple[str, ...], _Split]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_normalize_network)], ...], _Split]
Paths = Annotated[tuple[Annotated[Path, _Path], ...], _Split]
Hosts = Annotated[tuple[_Host, ...], _Split]
Origins = Annotated[tuple[_Origin, ...], _Split]

Program = Annotated[str | None, _Blank, _NoNull]
Arguments = tuple[Annotated[str, _NoNull], ...]
Variables = Mapping[_VariableName, Annotated[SecretStr, _NoNull]]
Headers = Mapping[_HeaderName, _HeaderValue]
