"""Downloads: what is asked for arrives, and neither a URL nor a server can make us do anything else."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from refdesk.documents.fetch import (
    MAX_SITES,
    PIECES_PER_TURN,
    ROBOTS_SECONDS,
    USER_AGENT,
    Fetched,
    Fetcher,
    FetchRules,
    iter_decoded,
    open_fetcher,
)
from refdesk.errors import CannotFetch
from tests.certificates import write_certificate
from tests.documents.fetching import OPEN, answering, connections, download, refusal
from tests.documents.web import Web, answer, redirect, running_web
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


def _deflate(data: bytes) -> bytes:
    """Compress without a header, as some servers do."""
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


# What arrives


async def test_a_document_arrives_with_what_its_server_said_of_it(web: Web) -> None:
    web.pages["/guide.html"] = answer(
        b"<p>hi",
        content_type="Text/HTML; Charset=ISO-8859-1",
        etag='"1"',
        last_modified="Sun, 15 Nov 2026 00:00:00 GMT",
    )
    fetched, body = await download(web.url("/guide.html#part"))
    assert body == b"<p>hi"
    assert replace(fetched, file=None) == Fetched(  # type: ignore[arg-type]  # the file was read above
        url=web.url("/guide.html"),
        content_type="text/html",
        charset="iso-8859-1",
        file=None,  # type: ignore[arg-type]
        size=5,
        file_name="guide.html",
        etag='"1"',
        last_modified="Sun, 15 Nov 2026 00:00:00 GMT",
        not_modified=False,
    )


async def test_a_document_without_a_type_has_an_empty_one(web: Web) -> None:
    web.pages["/"] = answer(b"text")
    fetched, _ = await download(web.url("/"))
    assert (fetched.content_type, fetched.charset, fetched.etag) == ("", None, None)


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _deflate)]
)
async def test_a_packed_document_arrives_unpacked(web: Web, coding: str, pack: Callable[[bytes], bytes]) -> None:
    web.pages["/"] = answer(pack(b"word " * 1000), content_encoding=coding)
    fetched, body = await download(web.url("/"))
    assert body == b"word " * 1000
    assert fetched.size == 5000


async def test_a_large_document_arrives_whole_and_reports_its_progress(web: Web) -> None:
    content = bytes(range(256)) * 20_000
    web.pages["/big"] = answer(content)
    seen: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, message: str) -> None:
        assert message == "Downloading from 127.0.0.1"
        seen.append((done, total))

    async with open_fetcher(OPEN) as fetcher:
        fetched = await fetcher.fetch(web.url("/big"), progress=progress)
        with fetched.file:
            assert fetched.file.read() == content
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (len(content), len(content))


async def test_the_server_is_told_our_name_and_nothing_else_about_us(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    web.pages["/start"] = answer(status="302 Found", location="/end", set_cookie="id=1; Path=/")
    web.pages["/end"] = answer(b"x")
    await download(web.url("/start"))
    names = {line.split(":")[0].lower() for line in web.requests[-1].split("\r\n")[1:] if line}
    assert names == {"host", "user-agent", "accept", "accept-encoding"}
    assert f"User-Agent: {USER_AGENT}\r\n" in web.requests[-1]
    assert f"Host: 127.0.0.1:{web.port}\r\n" in web.requests[-1]


async def test_path_and_query_are_sent_as_given(web: Web) -> None:
    path = "/a%20b/%7Ec/%40@;d=1//e?x=%20y+z&sign=%2Fab%3D=&&f;g"
    web.pages[path] = answer(b"signed")
    fetched, body = await download(web.url(path))
    assert (body, fetched.url) == (b"signed", web.url(path))


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/a/./b/../c", "/a/c"), ("/../../x/.", "/x/"), ("/a/..", "/"), ("", "/"), ("?q=1", "/?q=1"), ("/é", "/%C3%A9")],
)
async def test_paths_are_normalized(web: Web, path: str, sent: str) -> None:
    web.pages[sent] = answer(b"x")
    await download(web.url(path))
    assert web.paths == [sent]


async def test_connections_are_used_again(web: Web) -> None:
    web.pages["/"] = answer(b"x")
    async with open_fetcher(OPEN) as fetcher:
        for _ in range(3):
            (await fetcher.fetch(web.url("/"))).file.close()
    assert web.connections == 1


async def test_many_downloads_at_once_do_not_mix(web: Web) -> None:
    for number in range(50):
        web.pages[f"/{number}"] = answer(b"%d;" % number * 1000)
    async with open_fetcher(OPEN) as fetcher:

        async def check(number: int) -> None:
            fetched = await fetcher.fetch(web.url(f"/{number}"))
            with fetched.file:
                assert fetched.file.read() == b"%d;" % number * 1000

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(check, number)


async def test_a_copy_that_is_still_good_is_not_sent_again(web: Web) -> None:
    web.pages["/"] = answer(status="304 Not Modified", etag='"1"')
    async with open_fetcher(OPEN) as fetcher:
        fetched = await fetcher.fetch(web.url("/"), etag='"1"', last_modified="Sun, 15 Nov 2026 00:00:00 GMT")
        with fetched.file:
            assert fetched.file.read() == b""
    assert (fetched.not_modified, fetched.size, fetched.etag) == (True, 0, '"1"')
    assert 'If-None-Match: "1"\r\n' in web.requests[0]
    assert "If-Modified-Since: Sun, 15 Nov 2026 00:00:00 GMT\r\n" in web.requests[0]


async def test_a_server_that_calls_a_copy_good_which_we_do_not_have_is_refused(web: Web) -> None:
    web.pages["/"] = answer(status="304 Not Modified")
    assert "304" in await refusal(web.url("/"))


@pytest.mark.parametrize("validator", ["a\r\nX-Evil: 1", "x" * 600, "\u2028", ""])
async def test_a_validator_that_cannot_be_sent_is_left_out(web: Web, validator: str) -> None:
    web.pages["/"] = answer(b"x")
    async with open_fetcher(OPEN) as fetcher:
        (await fetcher.fetch(web.url("/"), etag=validator, last_modified=validator)).file.close()
    assert "Evil" not in web.requests[0]
    assert "If-" not in web.requests[0]


# Redirects


async def test_redirects_are_followed_to_where_they_end(web: Web) -> None:
    web.pages["/a"] = redirect("b", "301 Moved Permanently")
    web.pages["/b"] = redirect(web.url("/c?x=1"), "307 Temporary Redirect")
    web.pages["/c?x=1"] = answer(b"end")
    fetched, body = await download(web.url("/a"))
    assert (fetched.url, body) == (web.url("/c?x=1"), b"end")


async def test_redirects_without_an_end_are_given_up(web: Web) -> None:
    web.pages["/"] = redirect("/")
    assert "More than 5 redirects" in await refusal(web.url("/"))
    assert len(web.requests) == 6


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://x/", "http://u:p@x/", "http://[", "/a b\\c"])
async def test_a_redirect_to_what_is_no_plain_url_is_refused(web: Web, location: str) -> None:
    web.pages["/"] = redirect(location)
    await refusal(web.url("/"))
    assert web.paths == ["/"]


async def test_a_redirect_that_leads_nowhere_is_refused(web: Web) -> None:
    web.pages["/"] = answer(status="302 Found")
    assert "302 Found" in await refusal(web.url("/"))


# Encryption


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for docs.example, both in one file."""
    file = tmp_path_factory.mktemp("tls") / "docs.pem"
    write_certificate(file, "docs.example")
    return file


Serving = Callable[[], AbstractAsyncContextManager[Web]]


@pytest.fixture
def secure_web(certificate: Path) -> Serving:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return lambda: running_web(tls=context)


async def over_tls(web: Web, certificate: Path, host: str, rules: FetchRules = OPEN) -> bytes:
    fetcher = Fetcher(
        rules, resolver=answering(["127.0.0.1"]), trust=lambda: ssl.create_default_context(cafile=str(certificate))
    )
    try:
        fetched = await fetcher.fetch(f"https://{host}:{web.port}/")
        with fetched.file:
            return fetched.file.read()
    finally:
        await fetcher.aclose()


async def test_the_certificate_is_checked_against_the_name_and_not_the_address(
    secure_web: Serving, certificate: Path
) -> None:
    async with secure_web() as web:
        web.pages["/"] = answer(b"safe")
        assert await over_tls(web, certificate, "docs.example") == b"safe"
        with pytest.raises(CannotFetch, match=r"certificate of other\.example is not valid"):
            await over_tls(web, certificate, "other.example")


async def test_an_encrypted_connection_is_not_left_for_an_open_one(secure_web: Serving, certificate: Path) -> None:
    async with secure_web() as web:
        web.pages["/"] = redirect("http://docs.example/")
        with pytest.raises(CannotFetch, match=r"redirects from https to http://docs\.example/, which is not followed"):
            await over_tls(web, certificate, "docs.example")


async def test_a_server_without_tls_is_told_so(certificate: Path) -> None:
    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        with pytest.raises(CannotFetch, match="No TLS connection"):
            await over_tls(Web(port=server.sockets[0].getsockname()[1]), certificate, "docs.example")


async def test_a_server_that_hangs_while_tls_is_agreed_on_is_left_at_the_deadline(certificate: Path) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def hear_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()
        left.set()

    async with await asyncio.start_server(hear_out, "127.0.0.1", 0) as server:
        web, seconds = Web(port=server.sockets[0].getsockname()[1]), 0.3
        while not came.is_set():  # a busy machine may take longer than that to connect
            with pytest.raises(CannotFetch, match="took longer"):
                await over_tls(web, certificate, "docs.example", replace(OPEN, seconds=seconds))
            seconds *= 4
        with anyio.fail_after(PATIENCE_SECONDS):
            await left.wait()


# Servers that mean no good


def script(*parts: bytes, endless: bytes = b"") -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Send these parts, and the last ones for ever."""

    async def run(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while endless:
            writer.write(endless)
            await writer.drain()

    return run


def hanging(*parts: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Send these parts, and then nothing, without hanging up."""

    async def run(writer: asyncio.StreamWriter) -> None:
        await script(*parts)(writer)
        await asyncio.Event().wait()

    return run


SMALL = replace(OPEN, max_bytes=100_000)


async def test_a_document_of_just_the_size_that_may_be_is_fetched(web: Web) -> None:
    web.pages["/"] = answer(bytes(SMALL.max_bytes))
    assert (await download(web.url("/"), SMALL))[0].size == SMALL.max_bytes


async def test_a_length_over_the_bound_is_refused_before_the_body(web: Web) -> None:
    web.pages["/"] = hanging(answer(content_length="100001"))
    assert "larger than 100000 bytes" in await refusal(web.url("/"), SMALL)


async def test_a_body_without_a_length_is_cut_at_the_bound(web: Web) -> None:
    web.pages["/"] = script(b"HTTP/1.1 200 OK\r\n\r\n", endless=bytes(5000))
    assert "larger than 100000 bytes" in await refusal(web.url("/"), SMALL)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_bomb_is_cut_at_the_bound_and_not_unpacked(web: Web, coding: str) -> None:
    packed = zlib.compressobj(9, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    bomb = b"".join(packed.compress(bytes(1 << 20)) for _ in range(60)) + packed.flush()
    assert len(bomb) < 80_000
    web.pages["/"] = answer(bomb, content_encoding=coding)
    rules = replace(OPEN, max_bytes=1_000_000)
    assert "larger than 1000000 bytes" in await refusal(web.url("/"), rules)


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,deflate", "br", "zstd", "compress", "x" * 500])
async def test_a_packing_that_was_not_asked_for_is_not_undone(web: Web, coding: str) -> None:
    web.pages["/"] = answer(b"x", content_encoding=coding)
    message = await refusal(web.url("/"))
    assert "which was not asked for" in message
    assert len(message) < 300


async def test_a_damaged_packing_is_told(web: Web) -> None:
    web.pages["/"] = answer(b"this is no gzip", content_encoding="gzip")
    assert "arrived damaged" in await refusal(web.url("/"))


@pytest.mark.parametrize(
    "dripping",
    [
        hanging(),
        hanging(b"HTTP/1.1 200"),
        hanging(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
        script(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", endless=b"1\r\nx\r\n"),
        script(endless=b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silent", "half a head", "half a body", "one byte at a time", "always about to begin"],
)
async def test_a_server_that_never_comes_to_an_end_is_given_up_at_the_deadline(
    web: Web, dripping: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    web.pages["/"] = dripping
    with anyio.fail_after(PATIENCE_SECONDS):
        assert "took longer than 0.3 seconds" in await refusal(web.url("/"), replace(OPEN, seconds=0.3))


async def test_a_name_server_that_never_answers_is_given_up_at_the_deadline() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    assert "took longer than 0.1 seconds" in await refusal("http://x.example/", replace(OPEN, seconds=0.1), never)


async def test_a_body_in_small_pieces_leaves_others_their_turn() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES_PER_TURN * 10):
            yield b"x"

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        assert b"".join([piece async for piece in iter_decoded(pieces(), [])]) != b""
        group.cancel_scope.cancel()
    assert turns >= 9


@pytest.mark.parametrize(
    "broken",
    [
        script(b"HTTP/1.1 200 OK\r\n", endless=b"X-Header: " + b"x" * 1000 + b"\r\n"),
        script(b"HTTP/1.1 200 OK\r\nX: ", endless=b"x" * 1000),
        script(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
        script(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        script(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        script(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnumber\r\n"),
        script(b"\x00\xff" * 100 + b"\r\n\r\n"),
        script(b"SSH-2.0-OpenSSH\r\n\r\n"),
        script(),
    ],
    ids="heads header short two-lengths negative chunk noise ssh hang-up".split(),
)
async def test_a_server_that_does_not_keep_to_http_is_told(
    web: Web, broken: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    web.pages["/"] = broken
    assert await refusal(web.url("/")) in (
        f"127.0.0.1 answered {web.url('/')} with invalid HTTP. Check the URL, or try again.",
        f"The connection to 127.0.0.1 closed before {web.url('/')} was complete. Try again.",
    )


async def test_bytes_after_the_stated_length_are_rejected(web: Web) -> None:
    """They would be read as the next response of the connection."""
    web.pages["/"] = script(answer(b"and more", content_length="3"))
    assert "invalid HTTP" in await refusal(web.url("/"))


async def test_nobody_listening_is_told(web: Web) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "could not be reached" in await refusal(f"http://127.0.0.1:{port}/")


async def test_the_fetcher_works_on_after_failures(web: Web) -> None:
    web.pages["/bad"] = script(b"nonsense\r\n\r\n")
    web.pages["/good"] = answer(b"good")
    async with open_fetcher(OPEN) as fetcher:
        for _ in range(40):
            with pytest.raises(CannotFetch):
                await fetcher.fetch(web.url("/bad"))
        fetched = await fetcher.fetch(web.url("/good"))
        with fetched.file:
            assert fetched.file.read() == b"good"


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("404 Not Found", "answered 404 Not Found. Check the URL."),
        ("403 Forbidden", "add it as a file"),
        ("401 Unauthorized", "add it as a file"),
        ("500 Internal Server Error", "Try again later."),
        ("204 No Content", "no document"),
        ("206 Partial Content", "no document"),
        ("418 I'm a teapot", "no document"),
        ("799 <script>", "799"),
    ],
)
async def test_a_status_that_brings_no_document_is_told_with_what_to_do(web: Web, status: str, advice: str) -> None:
    web.pages["/"] = answer(status=status)
    message = await refusal(web.url("/"))
    assert advice in message
    assert "script" not in message


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("1.5", 1.5), ("604800", 86400)])
async def test_a_busy_server_says_when_to_come_back(web: Web, header: str, seconds: float) -> None:
    web.pages["/"] = answer(status="429 Too Many Requests", retry_after=header)
    async with open_fetcher(OPEN) as fetcher:
        with pytest.raises(CannotFetch, match=f"Try again in {seconds:g} seconds") as caught:
            await fetcher.fetch(web.url("/"))
    assert caught.value.retry_after == seconds


# robots.txt

POLITE = replace(OPEN, respect_robots=True)


async def test_what_a_site_asks_not_to_be_read_is_not_asked_for(web: Web) -> None:
    web.pages["/robots.txt"] = answer(b"User-agent: *\nDisallow: /private\n")
    web.pages["/private/a"] = web.pages["/open"] = answer(b"x")
    async with open_fetcher(POLITE) as fetcher:
        (await fetcher.fetch(web.url("/open"))).file.close()
        with pytest.raises(CannotFetch, match=r"robots\.txt of 127\.0\.0\.1 asks programs not to read /private/a"):
            await fetcher.fetch(web.url("/private/a"))
    assert web.paths == ["/robots.txt", "/open"]


async def test_every_hop_of_a_redirect_is_asked_about(web: Web) -> None:
    web.pages["/robots.txt"] = answer(b"User-agent: refdesk\nDisallow: /private\n")
    web.pages["/open"] = redirect("/private")
    assert "asks programs not to read /private" in await refusal(web.url("/open"), POLITE)
    assert "/private" not in web.paths


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "410 Gone"])
async def test_a_site_without_a_robots_txt_permits_everything(web: Web, status: str) -> None:
    web.pages["/robots.txt"] = answer(b"User-agent: *\nDisallow: /", status=status)
    web.pages["/"] = answer(b"x")
    assert (await download(web.url("/"), POLITE))[1] == b"x"


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests"])
async def test_a_site_whose_robots_txt_fails_permits_nothing_and_is_asked_again(web: Web, status: str) -> None:
    web.pages["/robots.txt"] = answer(status=status)
    web.pages["/"] = answer(b"x")
    async with open_fetcher(POLITE) as fetcher:
        with pytest.raises(CannotFetch, match=r"whether 127\.0\.0\.1 may be read is not known"):
            await fetcher.fetch(web.url("/"))
        web.pages["/robots.txt"] = answer(b"")
        (await fetcher.fetch(web.url("/"))).file.close()


async def test_a_robots_txt_without_end_counts_as_far_as_it_is_read(web: Web) -> None:
    web.pages["/robots.txt"] = script(
        b"HTTP/1.1 200 OK\r\n\r\nUser-agent: *\nDisallow: /no\n", endless=b"# more\n" * 999
    )
    web.pages["/"] = answer(b"x")
    assert (await download(web.url("/"), POLITE))[1] == b"x"
    assert "asks programs" in await refusal(web.url("/no"), POLITE)


async def test_a_robots_txt_cannot_lead_to_an_internal_address(web: Web, listeners: socket.socket) -> None:
    web.pages["/robots.txt"] = redirect(f"http://[::1]:{listeners.getsockname()[1]}/")
    web.pages["/"] = answer(b"x")
    assert "no public address" in await refusal(web.url("/"), POLITE)
    assert connections(listeners) == 0


async def test_the_rules_of_a_site_are_forgotten_after_an_hour(web: Web) -> None:
    now = 100.0
    web.pages["/"] = answer(b"x")
    async with aclosing(Fetcher(POLITE, now=lambda: now)) as fetcher:
        for waited, reads in ((0, 1), (ROBOTS_SECONDS - 1, 1), (1, 2)):
            now += waited
            (await fetcher.fetch(web.url("/"))).file.close()
            assert web.paths.count("/robots.txt") == reads


async def test_only_so_many_sites_are_remembered(web: Web) -> None:
    web.pages["/"] = answer(b"x")
    async with open_fetcher(POLITE, resolver=answering(["127.0.0.1"])) as fetcher:
        for number in (*range(MAX_SITES + 1), 1, MAX_SITES):
            (await fetcher.fetch(web.url("/", f"site{number}.example"))).file.close()
        assert web.paths.count("/robots.txt") == MAX_SITES + 1
        (await fetcher.fetch(web.url("/", "site0.example"))).file.close()
        assert web.paths.count("/robots.txt") == MAX_SITES + 2
