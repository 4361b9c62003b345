"""Which addresses a document may come from, however they are written and whatever they resolve to."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address

import pytest

from refdesk.documents.fetch import FetchRules
from refdesk.documents.ssrf import AddressPolicy, CheckedResolver, is_public, parse_networks, resolve
from refdesk.errors import CannotFetch
from tests.documents.fetching import LOOPBACK, OPEN, answering, connections, download, reaching, refusal
from tests.documents.web import Web, answer, redirect

pytestmark = pytest.mark.anyio

INTERNAL = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.255.255.254",
    "0",
    "0.0.0.0",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "0177.0.0.01",
    "00000177.1",
    "127.0.0.1.",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "LocalHost.",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "１２７.０.０.１",
    "ⓛocalhost",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000::0001]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2001:0:7f00:1::]",
    "[2a01:4f8::5efe:127.0.0.1]",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fe80::1%lo]",
    "[::1%25lo]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[fec0::1]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "169.254.43518",
    "0xa9fea9fe",
    "2852039166",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "127.0.0.1%00.example.com",
    "example.com@127.0.0.1",
    "127.0.0.1:80@localhost",
    "127.0.0.1\\@example.com",
    "127.0.0.1\t",
    " 127.0.0.1",
    "127.0.0.1\r\n",
]


def test_the_listener_would_see_a_connection(listeners: socket.socket) -> None:
    port = listeners.getsockname()[1]
    for host in ("127.0.0.1", "::1"):
        socket.create_connection((host, port)).close()
    assert connections(listeners) == 2


@pytest.mark.parametrize("host", INTERNAL)
async def test_no_spelling_of_an_internal_address_is_connected_to(host: str, listeners: socket.socket) -> None:
    rules = reaching(listeners)
    message = await refusal(f"http://{host}:{rules.ports[0]}/", rules)
    assert "could not be reached" not in message, "a connection was tried"
    assert "took longer" not in message, "a connection was tried"
    assert connections(listeners) == 0


@pytest.mark.parametrize(
    "host",
    "[::1] [::] [::ffff:127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] 0 127.2 127.0.0.2 0x7f.2 169.254.169.254".split(),
)
async def test_no_redirect_to_an_internal_address_is_followed(host: str, web: Web, listeners: socket.socket) -> None:
    rules = reaching(listeners)
    web.pages["/"] = redirect(f"http://{host}:{rules.ports[0]}/")
    await refusal(web.url("/"), replace(rules, allow=LOOPBACK, respect_robots=False))
    assert web.paths == ["/"]
    assert connections(listeners) == 0


async def test_a_refusal_reads_the_same_whether_something_listens_or_not(listeners: socket.socket) -> None:
    port = listeners.getsockname()[1]
    rules = FetchRules(ports=(port, port + 1))
    heard, silent = [await refusal(f"http://localhost:{number}/", rules) for number in (port, port + 1)]
    assert heard == silent


async def test_an_internal_name_reads_as_one_that_does_not_exist() -> None:
    async def missing(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    internal = await refusal("http://wiki.corp/", FetchRules(), answering(["10.1.2.3"]))
    assert internal == await refusal("http://wiki.corp/", FetchRules(), missing)
    assert internal == await refusal("http://wiki.corp/", FetchRules(), answering([]))
    assert "10.1.2.3" not in internal
    assert internal.startswith("wiki.corp has no public address")


async def test_a_name_server_that_is_silent_asks_for_patience() -> None:
    async def silent(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    assert "Try again later" in await refusal("http://example.com/", FetchRules(), silent)


@pytest.mark.parametrize(
    "addresses",
    [["93.184.215.14", "127.0.0.1"], ["127.0.0.1", "93.184.215.14"], ["2606:4700::1", "::1"], ["1.1.1.1", "fe80::1%2"]],
)
async def test_one_internal_address_spoils_the_whole_answer(addresses: list[str], listeners: socket.socket) -> None:
    assert "no public address" in await refusal("http://both.example/", reaching(listeners), answering(addresses))
    assert connections(listeners) == 0


async def test_a_name_is_looked_up_once_so_that_a_second_answer_changes_nothing(web: Web) -> None:
    web.pages["/"] = answer(b"first")
    looked_up = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else ["127.0.0.2"]

    _, body = await download(web.url("/", "rebind.example"), OPEN, rebinding)
    assert body == b"first"
    assert looked_up == ["rebind.example"]
    assert f"Host: rebind.example:{web.port}\r\n" in web.requests[0]


async def test_a_name_that_turns_internal_between_two_hops_is_refused(web: Web) -> None:
    web.pages["/"] = answer(status="302 Found", location="/secret", connection="close")
    message = await refusal(web.url("/", "rebind.example"), OPEN, answering(["127.0.0.1"], ["127.0.0.2"]))
    assert "rebind.example has no public address" in message
    assert web.paths == ["/"]


async def test_the_next_address_is_tried_when_one_is_dead(web: Web) -> None:
    web.pages["/"] = answer(b"alive")
    rules = replace(OPEN, allow=parse_networks(["127.0.0.0/8", "::1/128"]))
    _, body = await download(web.url("/", "two.example"), rules, answering(["::1", "127.0.0.1"]))
    assert body == b"alive"


async def test_an_allowed_network_opens_no_other(web: Web) -> None:
    web.pages["/"] = answer(b"x")
    rules = replace(OPEN, allow=parse_networks(["127.0.0.2/32", "10.0.0.0/8", "::/0"]))
    assert "no public address" in await refusal(web.url("/"), rules)
    assert web.connections == 0


async def test_a_port_that_serves_no_documents_is_refused_unless_its_network_is_allowed(web: Web) -> None:
    message = await refusal("http://mail.example:25/", FetchRules(), answering(["93.184.215.14"]))
    assert message.startswith("Port 25 of mail.example is not one")
    web.pages["/"] = answer(b"x")
    assert (await download(web.url("/"), OPEN))[1] == b"x"


def test_an_internal_address_is_not_told_from_another_by_its_port() -> None:
    reach = AddressPolicy((), (80,))
    for port in (80, 25):
        with pytest.raises(CannotFetch, match="no public address"):
            reach.check("x", port, [ip_address("10.0.0.1")])


@pytest.mark.parametrize("url", ["unix:///run/docker.sock", "http+unix://%2Frun%2Fdocker.sock/info"])
async def test_sockets_of_the_file_system_cannot_be_reached(url: str) -> None:
    assert "not an http or https URL" in await refusal(url)


@pytest.mark.parametrize("address", [("127.0.0.1", 80), ("::1", 80, 0, 0), ("::ffff:10.0.0.1", 80, 0, 0)])
def test_no_socket_is_created_for_an_internal_address(address: tuple[str, int]) -> None:
    resolver = CheckedResolver(AddressPolicy((), (80,)), resolve)
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with pytest.raises(CannotFetch, match="no public address"):
        resolver.create_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address))


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "93.184.215.14", "172.15.255.255", "172.32.0.0", "2606:4700::1", "2a01:4f8::1"]
)
def test_ordinary_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com/a", "not an http or https URL"),
        ("file:///etc/passwd", "not an http or https URL"),
        ("gopher://127.0.0.1:6379/_INFO", "not an http or https URL"),
        ("data:text/html,hi", "not an http or https URL"),
        ("//example.com/", "not an http or https URL"),
        ("example.com", "not an http or https URL"),
        ("", "not an http or https URL"),
        ("http://", "no valid host"),
        ("http:///path", "no valid host"),
        ("http://user:pass@example.com/", "user name or password"),
        ("http://user@example.com/", "user name or password"),
        ("http://example.com:0/", "port"),
        ("http://example.com:99999/", "port"),
        ("http://example.com:port/", "not a valid URL"),
        ("http://exa mple.com/", "spaces"),
        ("http://example.com/\r\nHost: evil", "spaces"),
        ("http://example.com/\u200b", "spaces"),
        ("http://example.com\\.evil.com/", "backslashes"),
        ("http://[::1/", "."),
        ("http://" + "a" * 300 + "/", "no valid host"),
        ("http://example.com/" + "a" * 9000, "longer than"),
    ],
)
async def test_a_url_that_is_not_plain_is_refused_with_the_reason(url: str, said: str) -> None:
    message = await refusal(url, FetchRules(), answering(["127.0.0.1"]))
    assert said in message
    assert "pass@" not in message
    assert len(message) < 400
