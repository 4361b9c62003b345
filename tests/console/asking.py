"""Asking a desk as the console's pages do."""

from __future__ import annotations

from typing import Any

from tests.servers import RunningServer
from tests.waiting import eventually


def bearer(key: str) -> dict[str, str]:
    """The headers that a key is sent in."""
    return {"authorization": f"Bearer {key}"} if key else {}


async def act(server: RunningServer, action: str, status: int = 200, /, key: str = "", **params: Any) -> Any:
    """The answer to an action."""
    answer = await server.http.post(f"/api/console/{action}", json=params, headers=bearer(key))
    assert answer.status_code == status, (action, answer.text)
    return answer.json()


async def get_refusal(server: RunningServer, action: str, status: int, /, key: str = "", **params: Any) -> str:
    """What is said to an action that is refused."""
    message: str = (await act(server, action, status, key=key, **params))["error"]["message"]
    return message


async def bring(server: RunningServer, text: str, title: str, key: str = "", **more: Any) -> str:
    """Bring a text in, and wait until it is there; its id."""
    arguments = {"text": text, "title": title, **more}
    answer = await server.http.post("/api/tools/r2r_ingest_document", json=arguments, headers=bearer(key))
    result = answer.json()
    assert not result.get("isError"), result
    id: str = result["structuredContent"]["document_id"]

    async def is_in() -> bool:
        [found] = [each for each in (await act(server, "documents", key=key))["documents"] if each["id"] == id]
        return str(found["status"]) == "success"

    await eventually(is_in)
    return id
