"""A model that answers from the documentation: list the tools, let it choose, call, and check what it cites.

    python examples/llm_loop.py                           # a scripted model: no network, no key
    OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_MODEL=qwen3 python examples/llm_loop.py "How do I …?"

With OPENAI_MODEL set, any endpoint that speaks the OpenAI chat API is the model (OPENAI_API_KEY is sent if there is
one). The loop is the same for both, and so is the check at the end: an answer counts only when each number that it
cites is one of the passages that the tools gave.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2

import refdesk
from own_desk import open_desk

INSTRUCTIONS = (
    "Answer the question from what the tools find, in one to three sentences. After each sentence write the number of "
    "the passage it is from, such as [1]. Say so if they do not hold the answer."
)
ROUNDS = 5


@dataclass(frozen=True)
class ToolCall:
    """What a model wants to be called."""

    name: str
    arguments: dict[str, Any]
    id: str = "call_1"


class Model(Protocol):
    """Whoever decides: sees the conversation and the tools, and says what to call, or the answer."""

    async def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ToolCall | str: ...


@dataclass
class Passages:
    """What the tools gave, numbered as the model sees it."""

    texts: list[str] = field(default_factory=list)

    def add(self, content: list[dict[str, Any]]) -> str:
        """Number the passages of an answer, in the words that the model is shown."""
        first = len(self.texts) + 1
        self.texts += [item["text"] for item in content if item["type"] == "text"]
        return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(self.texts[first - 1 :], first))

    def cited(self, answer: str) -> list[int]:
        """The passages that an answer cites; ValueError when it cites none, or one that there is not."""
        numbers = sorted({int(number) for number in re.findall(r"\[(\d+)\]", answer)})
        if not numbers or numbers[-1] > len(self.texts) or numbers[0] < 1:
            raise ValueError(f"this is not grounded, for it cites {numbers} of {len(self.texts)} passages: {answer}")
        return numbers


async def answer(question: str, model: Model, client: refdesk.Client) -> tuple[str, Passages]:
    """The loop: the model chooses tools and arguments until it answers."""
    tools = [dict(tool) for tool in await client.tools()]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question},
    ]
    passages = Passages()
    for _ in range(ROUNDS):
        said = await model.reply(messages, tools)
        if isinstance(said, str):
            passages.cited(said)
            return said, passages
        print(f"· calls {said.name} {json.dumps(said.arguments, ensure_ascii=False)}")
        result = await client.call(said.name, said.arguments)
        shown = passages.add([dict(item) for item in result.content])
        function = {"name": said.name, "arguments": json.dumps(said.arguments)}
        call = {"id": said.id, "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": said.id, "content": shown},
        ]
    raise RuntimeError(f"no answer after {ROUNDS} calls")


class ScriptedModel:
    """A model of a few rules, so that the loop runs anywhere and every time alike.

    It is told no tool's name. It takes the tool whose description has most in common with what it wants to do, among
    those that need nothing but one text; and it answers with nothing but sentences that stand in what the tool gave.
    """

    WANTS = "search the indexed technical documentation for passages that match a question"

    async def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ToolCall | str:
        question = str(messages[1]["content"])
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        return self.compose(question, results[-1]) if results else self.choose(question, tools)

    def choose(self, question: str, tools: list[dict[str, Any]]) -> ToolCall:
        """The tool that fits best, with the question as its argument."""
        askable = [tool for tool in tools if len(needed_texts(tool)) == 1]
        best = max(askable, key=lambda tool: len(words(self.WANTS) & words(tool["description"])))
        return ToolCall(best["name"], {needed_texts(best)[0]: question})

    def compose(self, question: str, shown: str) -> str:
        """The first sentences of the passage whose heading has most words of the question; of equals, of the first."""
        passages = re.findall(r"^\[(\d+)\] (.*?)(?=^\[\d+\] |\Z)", shown, re.DOTALL | re.MULTILINE)
        told = [(number, text) for number, text in passages if sentences(text)]
        if not told:
            return "The documentation does not hold the answer [1]."
        number, text = max(told, key=lambda one: len(words(question) & words(one[1].splitlines()[0])))
        return " ".join(f"{sentence} [{number}]" for sentence in sentences(text)[:2])


class OpenAiModel:
    """Any endpoint that speaks the OpenAI chat API, such as Ollama, vLLM, LM Studio or OpenAI itself."""

    def __init__(self, url: str, name: str, key: str) -> None:
        self._url, self._name = f"{url.rstrip('/')}/chat/completions", name
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ToolCall | str:
        offered = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["inputSchema"],
                },
            }
            for tool in tools
        ]
        body = {"model": self._name, "messages": messages, "tools": offered}
        async with httpx2.AsyncClient(timeout=120, headers=self._headers) as http:
            response = (await http.post(self._url, json=body)).raise_for_status()
        message = response.json()["choices"][0]["message"]
        if calls := message.get("tool_calls"):
            function = calls[0]["function"]
            return ToolCall(function["name"], json.loads(function["arguments"]), calls[0]["id"])
        return str(message["content"])


def needed_texts(tool: dict[str, Any]) -> list[str]:
    """The arguments that a tool cannot do without, if all of them are texts."""
    schema = tool["inputSchema"]
    needed = schema.get("required", [])
    are_texts = all(schema["properties"][name].get("type") == "string" for name in needed)
    return needed if are_texts else []


def sentences(passage: str) -> list[str]:
    """The sentences of a passage's prose, without its heading, its code and the line that names its source."""
    prose = re.sub(r"```.*?(```|\Z)|^(#|Source:|\().*?$", "", passage, flags=re.DOTALL | re.MULTILINE)
    found = re.split(r"(?<=[.!?:])\s+", prose)
    return [sentence.strip() for sentence in found if re.fullmatch(r"\s*[`A-Z].{30,}[.!?:]\s*", sentence, re.DOTALL)]


def words(text: str) -> set[str]:
    """The longer words of a text, without their endings."""
    return {word[:5] for word in re.findall(r"\w{3,}", text.lower())}


def model_from_environment() -> Model:
    if name := os.environ.get("OPENAI_MODEL"):
        url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        return OpenAiModel(url, name, os.environ.get("OPENAI_API_KEY", ""))
    return ScriptedModel()


async def main(question: str) -> None:
    print(question)
    async with open_desk() as url, refdesk.connect(f"{url}/mcp") as client:
        said, passages = await answer(question, model_from_environment(), client)
    print(f"\n{said}\n")
    for number in passages.cited(said):
        print(f"[{number}] {passages.texts[number - 1].splitlines()[0].strip('# ')}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "How do I require an API key?"))
