"""Connect, list the tools, search, and read on where a passage ends: with the official MCP SDK for Python.

python examples/plain_client.py                       # with a desk of its own
REFDESK_URL=http://127.0.0.1:8001 python examples/plain_client.py "How do I change the port?"
"""

from __future__ import annotations

import asyncio
import sys

from mcp import Client
from mcp.types import TextContent

from own_desk import open_desk


async def main(question: str) -> None:
    async with open_desk() as url, Client(f"{url}/mcp") as client:
        # What can it do?
        tools = (await client.list_tools()).tools
        print(f"{len(tools)} tools:", ", ".join(tool.name for tool in tools))

        # Find passages: each names the document that it is from.
        found = await client.call_tool("search_documentation", {"query": question, "max_results": 2})
        passages = [item for item in found.content if isinstance(item, TextContent)]
        print(f"\n{question}\n\n" + "\n\n".join(passage.text for passage in passages))

        # Read the document of the best one, a page at a time.
        document = (passages[0].meta or {})["metadata"]["source"]
        cursor, pages = None, 0
        while pages == 0 or cursor:
            wanted = {"document_id": document, "max_tokens": 500} | ({"cursor": cursor} if cursor else {})
            page = (await client.call_tool("get_document", wanted)).content[0]
            cursor, pages = (page.meta or {}).get("nextCursor"), pages + 1
        print(f"\n{document} has {pages} pages of at most 500 tokens.")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "How do I require an API key?"))
