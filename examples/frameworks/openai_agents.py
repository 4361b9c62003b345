# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents>=0.24,<0.25"]
# ///
"""OpenAI Agents SDK: an agent with a desk as its MCP server.

Start a desk (`scripts/serve`), then:

    uv run examples/frameworks/openai_agents.py
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

URL = os.environ.get("REFDESK_URL", "http://127.0.0.1:8001")
QUESTION = "How do I require an API key?"


class Scripted(Model):
    """In place of a model, so that this runs without a key: it searches, then answers with what was found."""

    async def get_response(self, system_instructions: Any, input: Any, *given: Any, **more: Any) -> ModelResponse:
        found = [item["output"] for item in input if item.get("type") == "function_call_output"]
        if found:
            text = found[-1] if isinstance(found[-1], str) else found[-1][0]["text"]
            content = ResponseOutputText(type="output_text", text=text, annotations=[])
            said = ResponseOutputMessage(
                id="1", type="message", role="assistant", status="completed", content=[content]
            )
            return ModelResponse([said], Usage(), None)
        arguments = json.dumps({"query": QUESTION, "max_results": 1})
        call = ResponseFunctionToolCall(
            type="function_call", call_id="1", name="search_documentation", arguments=arguments
        )
        return ModelResponse([call], Usage(), None)

    def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the example does not stream")


async def main() -> None:
    set_tracing_disabled(True)  # traces go to OpenAI, and want a key
    # A desk that wants a key: {"url": …, "headers": {"Authorization": "Bearer …"}}
    async with MCPServerStreamableHttp({"url": f"{URL}/mcp"}, client_session_timeout_seconds=60) as server:
        tools = await server.list_tools()
        print(len(tools), "tools:", ", ".join(tool.name for tool in tools))

        # With a model: leave `model` out, and set OPENAI_API_KEY.
        agent = Agent(name="Librarian", instructions="Answer from it.", mcp_servers=[server], model=Scripted())
        print((await Runner.run(agent, QUESTION)).final_output)


if __name__ == "__main__":
    asyncio.run(main())
