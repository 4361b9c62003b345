"""Value types of settings: what each accepts, and how it is masked.

A validator raises ValueError with what was expected, phrased to follow "is not".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

MASK = "********"

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")
HOST = re.compile(r"[^\s/?#@]+")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEX_DIGITS = re.compile(r"[0-9a-f]{64}")

YEAR_SECONDS = 31_536_000
"""Upper bound for durations: longer ones overflow the timers of some event loops."""


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


def _reject_bool(value: Any) -> Any:
    # `bool` is a subclass of `int`: `port: yes` would become port 1.
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _blank_to_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def split_commas(value: Any) -> Any:
    """Split comma-separated text into a list; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    return [item for item in map(str.strip, value.split(",")) if item]


def _check_path(path: Path | None) -> Path | None:
    if "\0" in str(path):
        raise ValueError("a path")
    try:
        return path.expanduser() if path else path
    except RuntimeError:
        raise ValueError("a path whose home folder is known") from None


def _normalize_host(value: str) -> str:
    if not HOST.fullmatch(value):
        raise ValueError("a host name or address")
    return value.lower()


def _normalize_address(value: str) -> str:
    return _normalize_host(value).removeprefix("[").removesuffix("]")


def _normalize_origin(value: str) -> str:
    origin = value.lower().removesuffix("/")
    if origin != "*" and not ORIGIN.fullmatch(origin):
        raise ValueError("an origin such as https://app.example.com, without a path")
    return origin


def is_encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: undecodable bytes in the environment become surrogates, which can't."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_key(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not (value.get_secret_value() and is_encodable(value.get_secret_value())):
        raise ValueError("a key of at least one character")
    return value


def _normalize_sha256(value: SecretStr | None) -> SecretStr | None:
    digits = value.get_secret_value().lower() if value else ""
    if value is not None and not HEX_DIGITS.fullmatch(digits):
        raise ValueError("64 hexadecimal digits")
    return SecretStr(digits) if digits else None


def _normalize_network(value: str) -> str:
    try:
        return str(ip_network(value.strip(), strict=False))
    except ValueError:
        raise ValueError("an address or network such as 10.0.0.0/8") from None


def _has_scheme(url: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
        # Reading `port` validates it.
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_web_url(url: Url | None) -> Url | None:
    if url and not _has_scheme(url.get_secret_value(), ("http", "https")):
        raise ValueError("a URL such as http://localhost:7272")
    return url


def _check_server_url(url: Url | None) -> Url | None:
    if url and not _has_scheme(url.get_secret_value(), ("http", "https", "ws", "wss")):
        raise ValueError("a URL such as https://example.com/mcp")
    return url


def _check_variable_name(value: str) -> str:
    if not value or "=" in value or "\0" in value:
        raise ValueError("the name of an environment variable")
    return value


def _check_header_name(value: str) -> str:
    if not HEADER_NAME.fullmatch(value):
        raise ValueError("the name of an HTTP header")
    return value


def _check_header_value(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().isprintable():
        raise ValueError("a single line of printable text")
    return value


def _check_secret_text(value: SecretStr) -> SecretStr:
    if "\0" in value.get_secret_value():
        raise ValueError("text without null characters")
    return value


def _check_argument(value: str | None) -> str | None:
    if value and "\0" in value:
        raise ValueError("text without null characters")
    return value


def _check_redis_url(url: Url) -> Url:
    text = url.get_secret_value()
    if not text.startswith("unix://") and not _has_scheme(text, ("redis", "rediss")):
        raise ValueError("a URL such as redis://localhost:6379")
    return url


Whole = Annotated[int, BeforeValidator(_reject_bool)]
Bytes = Annotated[int, BeforeValidator(_reject_bool), Unit("bytes")]
_Time = Annotated[
    float, Field(allow_inf_nan=False), BeforeValidator(_reject_bool), Unit("seconds"), Field(le=YEAR_SECONDS)
]
Seconds = Annotated[_Time, Field(gt=0)]
SecondsOrNone = Annotated[_Time, Field(ge=0)]
"""Zero disables what the duration applies to."""
Address = Annotated[str, AfterValidator(_normalize_address)]
OptionalText = Annotated[str | None, BeforeValidator(_blank_to_none)]
OptionalPath = Annotated[Path | None, BeforeValidator(_blank_to_none), AfterValidator(_check_path)]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(_blank_to_none)]
OptionalWebUrl = Annotated[Url | None, BeforeValidator(_blank_to_none), AfterValidator(_check_web_url)]
ServerUrl = Annotated[Url | None, BeforeValidator(_blank_to_none), AfterValidator(_check_server_url)]
RedisUrl = Annotated[Url, AfterValidator(_check_redis_url)]
Key = Annotated[SecretStr | None, AfterValidator(_check_key)]
Sha256 = Annotated[SecretStr | None, AfterValidator(_normalize_sha256)]
Texts = Annotated[tuple[str, ...], BeforeValidator(split_commas)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_normalize_network)], ...], BeforeValidator(split_commas)]
Paths = Annotated[tuple[Annotated[Path, AfterValidator(_check_path)], ...], BeforeValidator(split_commas)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_normalize_host)], ...], BeforeValidator(split_commas)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_normalize_origin)], ...], BeforeValidator(split_commas)]

Program = Annotated[str | None, BeforeValidator(_blank_to_none), AfterValidator(_check_argument)]
Arguments = tuple[Annotated[str, AfterValidator(_check_argument)], ...]
Variables = Mapping[
    Annotated[str, AfterValidator(_check_variable_name)], Annotated[SecretStr, AfterValidator(_check_secret_text)]
]
Headers = Mapping[
    Annotated[str, AfterValidator(_check_header_name)], Annotated[SecretStr, AfterValidator(_check_header_value)]
]

AnyCase = BeforeValidator(_lower)
"""Makes a choice case-insensitive."""
