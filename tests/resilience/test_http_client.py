"""The HTTP client of external services: proxies, logins and bodies."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from refdesk.resilience.http_client import LARGE_BYTES, open_http_session, read_body, split_login, wrap_body
from tests.answers.endpoint import answer, running_endpoint
from tests.certificates import write_certificate
from tests.documents.web import running_web

pytestmark = pytest.mark.anyio


async def post(session: aiohttp.ClientSession, url: str, body: bytes = b"{}", **headers: str) -> bytes:
    async with session.post(URL(url), data=wrap_body(body), headers=headers) as response:
        return await read_body(response, 1000, ValueError)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_proxy_of_the_environment_gets_the_request_and_its_own_login(environment: pytest.MonkeyPatch) -> None:
    service = "http://model.invalid/v1"
    async with running_endpoint(answer(b"ok")) as proxy:
        environment.setenv("HTTP_PROXY", f"http://ann:secret@127.0.0.1:{proxy.port}")
        async with open_http_session(URL(service), connect_seconds=5, uses_proxy=True) as session:
            assert await post(session, service, Authorization="Bearer key") == b"ok"
    [head] = proxy.heads
    assert head.startswith(f"POST {service} HTTP/1.1")
    assert "Proxy-Authorization: Basic YW5uOnNlY3JldA==" in head
    assert "\r\nAuthorization: Bearer key" in head


async def test_proxy_is_ignored_where_it_is_excluded_or_not_wanted(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with running_endpoint(answer(b"ok")) as service:
        async with open_http_session(URL(service.url), connect_seconds=5) as session:
            assert await post(session, service.url) == b"ok"
        environment.setenv("NO_PROXY", "127.0.0.1")
        async with open_http_session(URL(service.url), connect_seconds=5, uses_proxy=True) as session:
            assert await post(session, service.url) == b"ok"


async def test_login_of_the_netrc_file_is_not_sent(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret")
    netrc.chmod(0o600)
    environment.setenv("NETRC", str(netrc))
    async with (
        running_endpoint(answer(b"ok")) as service,
        open_http_session(URL(service.url), connect_seconds=5, uses_proxy=True) as session,
    ):
        assert await post(session, service.url) == b"ok"
    assert "authorization" not in service.heads[0].lower()


async def test_certificates_are_checked_against_the_trust_store_of_the_environment(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pem = tmp_path / "service.pem"
    write_certificate(pem, "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    async with running_web(tls=tls) as web:
        web.pages["/"] = answer(b"ok")
        url = URL(f"https://localhost:{web.port}/")
        async with open_http_session(url, connect_seconds=5) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(url)
        environment.setenv("SSL_CERT_FILE", str(pem))
        async with open_http_session(url, connect_seconds=5) as session, session.get(url) as response:
            assert await read_body(response, 1000, ValueError) == b"ok"


async def test_large_body_arrives_whole_and_a_long_answer_is_refused() -> None:
    body = b'"' + b"x" * LARGE_BYTES + b'"'
    async with (
        running_endpoint(answer(b"ok"), answer(b"x" * 1001)) as service,
        open_http_session(URL(service.url), connect_seconds=5) as session,
    ):
        assert await post(session, service.url, body) == b"ok"
        with pytest.raises(ValueError):
            await post(session, service.url)
    assert len(service.bodies[0]) == LARGE_BYTES


def test_login_is_taken_out_of_the_url() -> None:
    assert split_login(URL("http://host/v1?a=b")) == (URL("http://host/v1?a=b"), None)
    assert split_login(URL("http://ann:s%40fe@host/v1")) == (URL("http://host/v1"), "Basic YW5uOnNAZmU=")
