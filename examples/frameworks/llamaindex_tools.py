# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-core>=0.14.25,<0.15", "llama-index-tools-mcp>=0.6,<0.7"]
# ///
"""LlamaIndex: an agent with the tools of a desk.

Start a desk (`scripts/serve`), then:

    uv run examples/frameworks/llamaindex_tools.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, MockFunctionCallingLLM
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

URL = os.environ.get("REFDESK_URL", "http://127.0.0.1:8001")
QUESTION = "How do I require an API key?"


def scripted(messages: Sequence[ChatMessage], **more: Any) -> ChatMessage:
    """In place of a model, so that this runs without a key: it searches, then answers with what it is given, which
    from this adapter is the whole result of the tool, as Python prints it."""
    last = messages[-1]
    if last.role == "tool":
        return ChatMessage(last.content, role="assistant")
    search = {"query": QUESTION, "max_results": 1}
    call = ToolCallBlock(tool_call_id="1", tool_name="search_documentation", tool_kwargs=search)
    return ChatMessage(role="assistant", blocks=[call])


async def main() -> None:
    # A desk that wants a key: BasicMCPClient(url, headers={"Authorization": "Bearer …"})
    client = BasicMCPClient(f"{URL}/mcp")
    tools = await McpToolSpec(client).to_tool_list_async()
    print(len(tools), "tools:", ", ".join(tool.metadata.name or "" for tool in tools))

    # With a model: FunctionAgent(tools=tools, llm=OpenAI("gpt-5-mini"))
    agent = FunctionAgent(tools=tools, llm=MockFunctionCallingLLM(response_generator=scripted), streaming=False)
    print(await agent.run(QUESTION))


if __name__ == "__main__":
    asyncio.run(main())
