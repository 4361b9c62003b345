"""Which Host and Origin headers are let in, for each way of binding."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.config.models import ServerConfig
from refdesk.inbound.requests import Access, build_access, read_credential


def rules(*, authenticated: bool = False, **settings: Any) -> Access:
    return build_access(ServerConfig(**settings), 8001, authenticated=authenticated)


LOOPBACK = rules()
OPEN = rules(host="0.0.0.0")
KEYED = rules(host="0.0.0.0", authenticated=True)
NAMED = rules(host="0.0.0.0", allowed_hosts=["desk.example"], authenticated=True)
ANY = rules(host="0.0.0.0", allowed_hosts=["*"])


@pytest.mark.parametrize(
    ("access", "host", "allowed"),
    [
        (LOOPBACK, b"localhost:8001", True),
        (LOOPBACK, b"LOCALHOST", True),
        (LOOPBACK, b"127.0.0.1:9999", True),
        (LOOPBACK, b"[::1]:8001", True),
        (LOOPBACK, b"10.0.0.5:8001", False),
        (LOOPBACK, b"desk.example", False),
        (LOOPBACK, b"localhost.evil.example", False),
        (LOOPBACK, b"localhost:8001:1", False),
        (LOOPBACK, b"localhost:http", False),
        (LOOPBACK, b"", False),
        (LOOPBACK, None, False),
        (OPEN, b"10.0.0.5:8001", True),
        (OPEN, b"[fe80::1]", True),
        (OPEN, b"desk.example", False),
        (KEYED, b"desk.example", True),
        (NAMED, b"desk.example:443", True),
        (NAMED, b"other.example", False),
        (NAMED, b"10.0.0.5", True),
        (ANY, b"anything.example", True),
        (ANY, b"any thing", False),
    ],
)
def test_a_host_is_let_in_by_the_rules_of_the_bind(access: Access, host: bytes | None, allowed: bool) -> None:
    assert access.allows_host(host) is allowed
    assert access.allows_host(host) is allowed


@pytest.mark.parametrize(
    ("access", "origin", "allowed"),
    [
        (LOOPBACK, None, True),
        (LOOPBACK, b"http://localhost:8001", True),
        (LOOPBACK, b"http://[::1]:8001", True),
        (LOOPBACK, b"https://localhost:8001", False),
        (LOOPBACK, b"http://localhost:8002", False),
        (LOOPBACK, b"null", False),
        (rules(allowed_origins=["https://app.example"]), b"https://app.example", True),
        (rules(allowed_origins=["https://app.example"]), b"https://app.example.evil", False),
        (rules(allowed_origins=["*"]), b"https://whoever.example", True),
    ],
)
def test_an_origin_is_let_in_to_the_letter(access: Access, origin: bytes | None, allowed: bool) -> None:
    assert access.allows_origin(origin) is allowed


@pytest.mark.parametrize(
    ("authorization", "api_key", "key"),
    [
        (None, None, None),
        (b"Bearer abc", None, "abc"),
        (b"bearer   abc ", None, "abc"),
        (b"Bearer", None, ""),
        (b"Basic abc", None, ""),
        (b"Basic abc", b"abc", ""),
        (None, b" abc ", "abc"),
        ("Bearer schlüssel".encode(), None, "schlüssel"),
    ],
)
def test_a_key_is_found_where_it_may_stand(authorization: bytes | None, api_key: bytes | None, key: str | None) -> None:
    assert read_credential(authorization, api_key) == key
