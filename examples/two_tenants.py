"""Two teams on one desk: the same names, and neither finds, reads or lists what the other has.

python examples/two_tenants.py
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager

import refdesk
from own_desk import open_desk

KEYS = {team: secrets.token_urlsafe(24) for team in ("red", "blue")}
SETTINGS = {
    "auth": {
        "required": True,
        "keys": [{"name": team, "key": key, "user": team, "tenant": team} for team, key in KEYS.items()],
    }
}


def client_of(url: str, team: str) -> AbstractAsyncContextManager[refdesk.Client]:
    """A client with the key of a team."""
    return refdesk.connect(f"{url}/mcp", headers={"Authorization": f"Bearer {KEYS[team]}"})


async def main() -> None:
    async with open_desk(SETTINGS) as url, client_of(url, "red") as red, client_of(url, "blue") as blue:
        teams = {"red": red, "blue": blue}

        # Both have a document of the same name in a collection of the same name; it says something else.
        for team, client in teams.items():
            text = f"The code of the door of team {team} is {len(team)}-{team.upper()}."
            new = {"title": "Door", "text": text, "collection_id": "house", "run_async": False}
            print(team, "adds", (await client.call("r2r_ingest_document", new)).structured["document_id"])
        secret = {"title": "Plan", "text": "Team red moves in May.", "collection_id": "house", "run_async": False}
        await red.call("r2r_ingest_document", secret)

        for team, client in teams.items():
            asked = {"query": "code of the door", "collection_id": "house"}
            hits = (await client.call("r2r_search", asked)).structured["results"]
            listed = (await client.call("r2r_list_documents", {"collection_id": "house"})).structured
            print(team, "finds", hits[0]["text"], "and has", [entry["document_id"] for entry in listed["documents"]])

        # To the other team, a document that is not its own does not exist, whatever it is called.
        print("blue reads house/plan:", (await blue.call("get_document", {"document_id": "house/plan"})).text)


if __name__ == "__main__":
    asyncio.run(main())
