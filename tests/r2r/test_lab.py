"""R2R itself, with nothing of ours between: the facts that the engine is built on, and that the lab can be trusted."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.r2r.lab import Account, Lab
from tests.r2r.lab.proxy import LOGIN, Fault, Proxy
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.r2r, pytest.mark.timeout(400)]


def collection(r2r: Lab, account: Account, text: str) -> str:
    """A new collection with a document in it."""
    made: str = r2r.ask(account, "POST", "/collections", json={"name": uuid4().hex})["id"]
    parts = {"raw_text": text, "id": str(uuid4()), "collection_ids": json.dumps([made]), "ingestion_mode": "fast"}
    r2r.ask(account, "POST", "/documents", files={name: (None, value) for name, value in parts.items()})
    return made


def search(r2r: Lab, account: Account, filters: dict[str, Any]) -> list[str]:
    settings = {"filters": filters, "limit": 50}
    found = r2r.ask(account, "POST", "/retrieval/search", json={"query": "zebra", "search_settings": settings})
    return [chunk["text"] for chunk in found["chunk_search_results"]]


def test_the_filter_that_looks_right_leaks_and_the_one_that_looks_odd_does_not(r2r: Lab, account: Account) -> None:
    """R2R's issue 2114: whoever owns a document is shown it, whichever collection was asked for."""
    ours, theirs = (collection(r2r, account, f"A zebra of {name}") for name in ("ours", "theirs"))
    assert len(search(r2r, account, {"collection_ids": {"$overlap": [ours]}})) == 2
    assert search(r2r, account, {"collection_id": {"$eq": ours}}) == ["A zebra of ours"]
    assert search(r2r, account, {"$and": [{"collection_ids": {"$overlap": [theirs]}}]}) == ["A zebra of theirs"]


def test_an_account_with_a_limit_is_told_so_without_being_told_until_when(r2r: Lab) -> None:
    account = r2r.account(limits={"global_per_min": 1})
    for _ in range(2):
        search(r2r, account, {})
    with pytest.raises(httpx2.HTTPStatusError) as refused:
        search(r2r, account, {})
    assert refused.value.response.status_code == 429
    assert "retry-after" not in refused.value.response.headers


def test_a_provider_that_fails_is_r2rs_failure(r2r: Lab, account: Account) -> None:
    body = {"query": "zebra", "rag_generation_config": {"stream": False}}
    with r2r.provider.failing(chat=500), pytest.raises(httpx2.HTTPStatusError) as failed:
        r2r.ask(account, "POST", "/retrieval/rag", json=body)
    assert failed.value.response.status_code == 500
    assert r2r.ask(account, "POST", "/retrieval/rag", json=body)["generated_answer"]


@pytest.mark.anyio
async def test_a_token_that_says_it_is_good_for_long_is_refused_once_it_has_expired(
    way: Proxy, account: Account
) -> None:
    async def status() -> int:
        answer = (await http.post(LOGIN, data={"username": account.email, "password": account.password})).json()
        token = answer["results"]["access_token"]["token"]
        return (await http.get("/v3/users/me", headers={"authorization": f"Bearer {token}"})).status_code

    async with httpx2.AsyncClient(base_url=way.url, verify=False, trust_env=False, timeout=PATIENCE_SECONDS) as http:
        assert await status() == 200
        way.next_is_expired = True
        assert await status() == 401
        assert await status() == 200
    assert (way.count(LOGIN), len(way.tokens), len(way.seen)) == (3, 3, 6)


@pytest.mark.anyio
async def test_the_way_to_r2r_can_be_disturbed_and_is_in_order_again(way: Proxy) -> None:
    async with httpx2.AsyncClient(base_url=way.url, verify=False, trust_env=False, timeout=PATIENCE_SECONDS) as http:
        with way.fault(Fault(status=503)):
            assert (await http.get("/v3/health")).status_code == 503
        with way.fault(Fault(is_reset=True, times=1)):
            with pytest.raises(httpx2.TransportError):
                await http.get("/v3/health")
            assert (await http.get("/v3/health")).status_code == 200
        assert (await http.get("/v3/health")).json() == {"results": {"message": "ok"}}
