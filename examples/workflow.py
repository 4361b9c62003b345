"""Search, ask, bring a text in, watch it until it can be found, and find it.

python examples/workflow.py

A desk that `REFDESK_URL` names keeps the text: there, a second run finds the answer at once. To have it as at first:
`refdesk collections remove house-notes`.
"""

from __future__ import annotations

import asyncio

import refdesk
from own_desk import open_desk

QUESTION = "Who looks after the espresso machine?"
TEXT = (
    "The espresso machine on the second floor is looked after by Ada. She descales it on the first Monday of a month."
)
COLLECTION = "house-notes"


async def main() -> None:
    async with open_desk() as url, refdesk.connect(f"{url}/mcp") as client:
        # 1. Nobody has written this down yet, and the desk says so instead of making something up.
        answer = (await client.call("r2r_rag_query", {"question": QUESTION})).structured
        print("before:", answer["answer"])

        # 2. Bring a text in. The answer comes at once; the work goes on behind it.
        new = {"title": "Espresso machine", "text": TEXT, "collection_id": COLLECTION}
        taken = (await client.call("r2r_ingest_document", new)).structured
        print("taken on:", taken["document_id"], taken["status"])

        # 3. Watch it until it can be found by its words and by its meaning.
        while True:
            asked = {"document_id": taken["document_id"], "wait_seconds": 20}
            task = (await client.call("r2r_monitor_task", asked)).structured
            print(f"{task['ingestion_status']}: {task['progress']:.0%}")
            if task["ingestion_status"] in ("success", "failed"):
                break

        # 4. Search it, and ask again: now there is an answer, with its source.
        hits = (await client.call("r2r_search", {"query": QUESTION, "collection_id": COLLECTION})).structured
        print("found:", hits["results"][0]["document_id"])
        answer = (await client.call("r2r_rag_query", {"question": QUESTION, "collection_id": COLLECTION})).structured
        print("after:", answer["answer"])
        for source in answer["sources"]:
            print(f"  [{source['citation']}] {source['document_id']}")


if __name__ == "__main__":
    asyncio.run(main())
