# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain>=1,<2", "langchain-mcp-adapters>=0.3,<0.4"]
# ///
"""LangChain: an agent with the tools of a desk.

Start a desk (`scripts/serve`), then:

    uv run examples/frameworks/langchain_tools.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient

URL = os.environ.get("REFDESK_URL", "http://127.0.0.1:8001")
QUESTION = "How do I require an API key?"


class Scripted(BaseChatModel):
    """In place of a model, so that this runs without a key: it searches, then answers with the best passage."""

    _llm_type = "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            said = AIMessage(last.content[0]["text"])
        else:
            call = {"name": "search_documentation", "args": {"query": last.content, "max_results": 1}, "id": "1"}
            said = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


async def main() -> None:
    # A desk that wants a key: "headers": {"Authorization": "Bearer …"}
    client = MultiServerMCPClient({"refdesk": {"transport": "streamable_http", "url": f"{URL}/mcp"}})
    tools = await client.get_tools()
    print(len(tools), "tools:", ", ".join(tool.name for tool in tools))

    agent = create_agent(Scripted(), tools)  # with a model: create_agent("anthropic:claude-sonnet-4-5", tools)
    state = await agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]})
    print(state["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(main())
