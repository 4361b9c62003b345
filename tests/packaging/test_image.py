"""The image, really built and really run; only when asked for, since it takes minutes and root."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from anyio import Path as AsyncPath

from refdesk.version import __version__
from tests.clients.npm import Unavailable
from tests.packaging.image import Container, Image, built_image, serving
from tests.real_files import OFFICE
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        os.environ.get("REFDESK_TEST_IMAGE") != "1", reason="takes minutes; REFDESK_TEST_IMAGE=1 runs it"
    ),
]

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
async def image(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Image]:
    try:
        async with built_image(tmp_path_factory.mktemp("image")) as image:
            yield image
    except Unavailable as why:
        pytest.skip(f"the image cannot be built: {why}")


@pytest.fixture
def volume(image: Image, tmp_path: Path) -> Path:
    """A new volume: an engine gives it the owner and the rights that the folder has in the image."""
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o700)
    kept = (image.root / "data").stat()
    os.chown(folder, kept.st_uid, kept.st_gid)
    for above in folder.parents[:2]:
        above.chmod(0o755)
    return folder


@pytest.fixture
async def container(image: Image, volume: Path) -> AsyncIterator[Container]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(image, volume, MCP_API_KEY=KEY, MCP_SERVER_PORT=str(port)) as container:
        yield container


async def test_it_is_labelled_and_says_its_version(image: Image, volume: Path) -> None:
    assert image.config["Labels"]["org.opencontainers.image.version"] == __version__
    assert (await image.run(volume, "refdesk", "--version")).out.split() == ["refdesk", __version__]


async def test_without_a_key_it_does_not_start_and_says_why(image: Image, volume: Path) -> None:
    ended = await image.run(volume)
    assert ended.code == 2
    assert "MCP_API_KEY" in ended.err


async def test_a_key_that_was_made_in_the_volume_is_enough(image: Image, volume: Path) -> None:
    made = await image.run(volume, "tini", "--", "refdesk", "keys", "make", "ada")
    assert made.code == 0, made.err
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(image, volume, MCP_SERVER_PORT=str(port)) as container:
        assert (await search(container, made.out.strip())).status_code == 200


async def test_it_answers_with_a_key_and_not_without(container: Container) -> None:
    assert (await search(container, "wrong")).status_code == 401
    found = await search(container, KEY)
    assert "require-api-keys.md" in found.text


async def search(container: Container, key: str) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=container.url, timeout=PATIENCE_SECONDS, verify=False) as http:
        arguments = {"query": "How do I require an API key?"}
        headers = {"Authorization": f"Bearer {key}"}
        return await http.post("/api/tools/search_documentation", json=arguments, headers=headers)


async def test_it_is_nobody_special_and_cannot_become_so(container: Container) -> None:
    status = await AsyncPath(f"/proc/{container.inner('refdesk')}/status").read_text()
    rights = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert rights["Uid"].split() == ["10001"] * 4
    assert (int(rights["CapEff"], 16), rights["NoNewPrivs"]) == (0, "1")


async def test_its_check_of_health_finds_it_well(container: Container, image: Image, volume: Path) -> None:
    _, *check = image.config["Healthcheck"]["Test"]
    port = container.url.rpartition(":")[2]
    assert (await image.run(volume, *check, MCP_SERVER_PORT=port)).code == 0
    assert (await image.run(volume, *check, MCP_SERVER_PORT="9")).code == 1


async def test_it_stops_in_order_when_it_is_told_to(container: Container) -> None:
    assert await container.stop() == 0


async def test_it_converts_and_cannot_write_elsewhere(image: Image, volume: Path) -> None:
    shutil.copy(OFFICE / "guide.docx", volume / "guide.docx")
    (volume / "guide.docx").chmod(0o644)
    converted = await image.run(volume, "refdesk", "convert", "guide.docx", "--to", "markdown", MCP_API_KEY=KEY)
    assert "def f(x):" in converted.out, converted.err
    touched = await image.run(volume, "touch", "/opt/refdesk/new")
    assert "Read-only file system" in touched.err
