"""What a running server tells of itself: readiness and metrics, of all that is behind it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Serve
from tests.servers import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"
"""A port that nothing listens on."""


async def checks(server: RunningServer) -> dict[str, Any]:
    return dict((await server.http.get("/ready")).json()["checks"])


async def metrics(server: RunningServer) -> list[str]:
    return (await server.http.get("/metrics")).text.splitlines()


async def call(server: RunningServer, tool: str, **arguments: Any) -> Any:
    return await server.call("tools/call", {"name": tool, "arguments": arguments})


async def is_answered_from_the_cache(server: RunningServer) -> bool:
    answer = await call(server, "r2r_search", query="How do I require API keys?")
    return answer["result"]["structuredContent"]["cached"] is True


async def is_degraded(server: RunningServer) -> bool:
    return bool((await checks(server))["downstream"]["state"] == "degraded")


async def test_what_waits_to_be_brought_in_is_measured_when_somebody_looks(serve: Serve) -> None:
    async with serve() as server:
        await call(server, "r2r_ingest_document", text="A text.", title="T", collection_id="c", run_async=False)
        assert 'refdesk_queue_documents{stage="pending"} 0.0' in await metrics(server)


@pytest.mark.parametrize("required", [False, True])
async def test_a_damaged_tenant_degrades_readiness_and_nothing_else(serve: Serve, *, required: bool) -> None:
    keys = {"auth__required": required, "auth__keys": [{"key": "k-ann", "user": "ann"}]} if required else {}
    async with serve(**keys, embedding__source="none") as server:
        server.http.headers.update({"authorization": "Bearer k-ann"} if required else {})
        await call(server, "r2r_ingest_document", text="A text.", title="T", collection_id="c", run_async=False)
        folder = server.desk.config.data_path / "tenants" / "n-acme"
        folder.mkdir()
        (folder / "knowledge.db").write_bytes(b"nonsense" * 1000)

        async def is_told() -> bool:
            return bool((await checks(server))["engine"]["state"] == "degraded")

        await eventually(is_told)
        ready = await server.http.get("/ready")
        assert ready.status_code == 200
        assert ("n-acme" in ready.text) is not required, "the endpoint is public"
        found = await call(server, "r2r_search", query="text")
        assert found["result"]["structuredContent"]["results"]


async def test_an_endpoint_that_fails_is_left_alone_and_that_is_told_everywhere(serve: Serve) -> None:
    async with serve(answers__api_url=NOBODY) as server:
        assert (await checks(server))["answers"]["state"] == "closed"
        assert 'refdesk_breaker_state{dependency="answers"} 0.0' in await metrics(server)
        questions = [f"How do I require API keys, asked for the {number}th time?" for number in range(6)]
        answers = [await call(server, "r2r_rag_query", question=question) for question in questions]
        assert [answer["error"]["code"] for answer in answers] == [-32001] * 5 + [-32003]
        assert 0 < answers[-1]["error"]["data"]["retry_after"] <= 30
        ready = await server.http.get("/ready")
        assert ready.status_code == 200, "search goes on without it"
        assert ready.json()["checks"]["answers"]["state"] == "open"
        lines = await metrics(server)
        assert 'refdesk_breaker_state{dependency="answers"} 2.0' in lines
        assert 'refdesk_breaker_rejections_total{dependency="answers"} 1.0' in lines


async def test_a_desk_whose_redis_was_never_there_answers_and_says_so(serve: Serve) -> None:
    redis = {"cache__type": "redis", "rate_limits__type": "redis", "cache__redis__url": "redis://127.0.0.1:9"}
    async with serve(**redis, rate_limits__calls=1000) as server:
        # What was answered before the whole index was at hand is not kept.
        await eventually(lambda: is_answered_from_the_cache(server))
        cache = (await checks(server))["cache"]
        assert (cache["state"], cache["redis"]["state"]) == ("ok", "away")
        assert cache["entries"] >= 1


async def test_a_limit_that_is_over_is_told_and_counted(serve: Serve) -> None:
    async with serve(rate_limits__calls=2) as server:
        answers = [await server.call("tools/list") for _ in range(3)]
        error = answers[-1]["error"]
        assert (error["code"], error["data"]["type"]) == (-32004, "RateLimited")
        assert 0 < error["data"]["retry_after"] <= 30
        assert 'refdesk_rate_limited_total{kind="calls"} 1.0' in await metrics(server)


async def test_servers_behind_the_desk_are_told_of_and_to_strangers_only_how_they_are(serve: Serve) -> None:
    servers = {"gone": {"command": "no-such-program-anywhere", "connect_tries": 1}}
    async with serve(mcpServers=servers) as server:
        await eventually(lambda: is_degraded(server))
        told = (await checks(server))["downstream"]["servers"]["gone"]
        assert told["state"] == "Error"
        assert "no-such-program-anywhere" in told["message"]
        assert 'refdesk_downstream_servers{state="Error"} 1.0' in await metrics(server)
    locked = {"auth__required": True, "auth__keys": [{"key": "a-key-of-some-length"}]}
    async with serve(mcpServers=servers, **locked) as server:
        assert set((await checks(server))["downstream"]["servers"]["gone"]) == {"state"}
