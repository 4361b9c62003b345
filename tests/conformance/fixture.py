"""The tools, resources and prompts that the conformance suite calls by name, declared as the product's own are.

Only what a scenario asks a server to have is here; how it is listed, validated and sent is the product's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from refdesk.calls import Call, text_content, tool_answer
from refdesk.errors import ToolFailure
from refdesk.tools.json_schema import Arguments
from refdesk.tools.prompts import Prompt, PromptArgument
from refdesk.tools.registry import Registry, Tool, ToolResult
from tests.conformance.content import (
    AUDIO,
    DEFAULTS,
    ENUMS,
    IMAGE,
    JSON_SCHEMA_2020_12,
    PNG,
    embed_resource,
    form,
    sample,
)

TOOLSET = "docs"
PAUSE_SECONDS = 0.05
"""Between two messages of one call, as the scenarios have it."""

AWAY_SECONDS = 0.2
"""How long a call goes on after its first message: enough for its client to leave and come back."""

Handler = Callable[[Any, Call], Awaitable[ToolResult]]


class NoArguments(Arguments):
    pass


class Prompted(Arguments):
    prompt: str


class Asked(Arguments):
    message: str


class Placed(Arguments):
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "none"


class Contact(Arguments):
    name: str | None = None
    address: dict[str, str] | None = None
    contactMethod: str | None = None
    phone: str | None = None
    email: str | None = None


def register_fixture(registry: Registry) -> None:
    """ExposedItem everything that the suite asks for."""
    for tool in [*_content_tools(), *_talking_tools(), *_rounds_tools(), *_change_tools(registry)]:
        registry.add_tool(tool)
    for prompt in _prompts():
        registry.add_prompt(prompt)
    registry.add_resources(FixtureResources())


def _tool(
    name: str,
    description: str,
    handler: Handler,
    arguments: type[Arguments] = NoArguments,
    *,
    schema: Mapping[str, Any] | None = None,
) -> Tool[Any]:
    title = name.replace("_", " ").capitalize()
    return Tool(name, title, description, TOOLSET, arguments, handler, schema=schema)


# Tools that only answer


def _content_tools() -> list[Tool[Any]]:
    return [
        _tool("test_simple_text", "Answers with a text.", _simple_text),
        _tool("test_image_content", "Answers with an image.", _answering(IMAGE)),
        _tool("test_audio_content", "Answers with a sound.", _answering(AUDIO)),
        _tool("test_embedded_resource", "Answers with a resource.", _answering(_EMBEDDED)),
        _tool("test_multiple_content_types", "Answers with a text, an image and a resource.", _answering(*_MIXED)),
        _tool("test_error_handling", "Always fails.", _fail),
        _tool("test_x_mcp_header", "Takes an argument that a header repeats.", _region, Placed),
        _tool(
            "json_schema_2020_12_tool",
            "Has a schema with the whole vocabulary of JSON Schema 2020-12.",
            _contact,
            Contact,
            schema=JSON_SCHEMA_2020_12,
        ),
    ]


_EMBEDDED = embed_resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
_MIXED = (
    text_content("Multiple content types test:"),
    IMAGE,
    embed_resource("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}'),
)


def _answering(*content: Mapping[str, Any]) -> Handler:
    async def answer(arguments: NoArguments, call: Call) -> ToolResult:
        return tool_answer(content)

    return answer


async def _simple_text(arguments: NoArguments, call: Call) -> str:
    return "This is a simple text response for testing."


async def _fail(arguments: NoArguments, call: Call) -> str:
    raise ToolFailure("This tool intentionally returns an error for testing")


async def _region(arguments: Placed, call: Call) -> str:
    return f"region={arguments.region}"


async def _contact(arguments: Contact, call: Call) -> str:
    return arguments.model_dump_json(exclude_none=True)


# Tools that report to the client, or ask it, while they work


def _talking_tools() -> list[Tool[Any]]:
    tools: list[tuple[str, str, Handler, type[Arguments]]] = [
        ("test_tool_with_logging", "Logs three messages.", _log_thrice, NoArguments),
        ("test_logging_tool", "Logs one message.", _log_once, NoArguments),
        ("test_tool_with_progress", "Reports progress three times.", _progress, NoArguments),
        ("test_sampling", "Has the client's model answer a prompt.", _sampling, Prompted),
        ("test_missing_capability", "Needs the client's model.", _missing_capability, NoArguments),
        ("test_elicitation", "Asks the user.", _elicitation, Asked),
        ("test_elicitation_sep1034_defaults", "Asks with defaults.", _eliciting(DEFAULTS), NoArguments),
        ("test_elicitation_sep1330_enums", "Asks with choices.", _eliciting(ENUMS), NoArguments),
        ("test_streaming_elicitation", "Reports, then asks the user.", _report_and_ask, NoArguments),
        ("test_reconnection", "Logs before and after a pause.", _reconnection, NoArguments),
    ]
    return [_tool(name, text, handler, arguments) for name, text, handler, arguments in tools]


async def _log_thrice(arguments: NoArguments, call: Call) -> str:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.client.log("info", message)
        await asyncio.sleep(PAUSE_SECONDS)
    return "Tool with logging executed successfully"


async def _log_once(arguments: NoArguments, call: Call) -> str:
    await call.client.log("info", "A message for those who asked for it")
    return "Logged"


async def _progress(arguments: NoArguments, call: Call) -> str:
    for done in (0, 50, 100):
        await call.client.progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(PAUSE_SECONDS)
    return "Tool with progress executed successfully"


async def _sampling(arguments: Prompted, call: Call) -> str:
    answer = await call.client.ask("answer", "sampling/createMessage", sample(arguments.prompt))
    return f"LLM response: {answer['content']['text']}"


async def _missing_capability(arguments: NoArguments, call: Call) -> str:
    answer = await call.client.ask("answer", "sampling/createMessage", sample("Say hello"))
    return f"LLM response: {answer['content']['text']}"


async def _elicitation(arguments: Asked, call: Call) -> str:
    text = {"type": "string"}
    answer = await call.client.ask(
        "user", "elicitation/create", form(arguments.message, {"username": text, "email": text})
    )
    return f"User response: {json.dumps(answer)}"


def _eliciting(properties: dict[str, Any]) -> Handler:
    async def elicit(arguments: NoArguments, call: Call) -> str:
        asked = form("Please fill this in", properties, required=())
        answer = await call.client.ask("form", "elicitation/create", asked)
        return f"Elicitation completed: {json.dumps(answer)}"

    return elicit


async def _report_and_ask(arguments: NoArguments, call: Call) -> str:
    await call.client.progress(1, 2, "About to ask")
    answer = await call.client.ask("user_name", "elicitation/create", _NAME_FORM)
    return f"User response: {json.dumps(answer)}"


async def _reconnection(arguments: NoArguments, call: Call) -> str:
    await call.client.log("info", "Before disconnect")
    await asyncio.sleep(AWAY_SECONDS)
    await call.client.log("info", "After reconnect")
    return "Reconnection test completed"


# Tools that take several calls to get all that they ask for

_TEXT = {"type": "string"}
_NAME_FORM = form("What is your name?", {"name": _TEXT})
_CONFIRM = {"confirm": {"method": "elicitation/create", "params": form("Please confirm", {"ok": {"type": "boolean"}})}}


def _rounds_tools() -> list[Tool[Any]]:
    tools: list[tuple[str, str, Handler]] = [
        ("elicitation", "Asks the user for a name.", _ask_name),
        ("sampling", "Asks the client's model a question.", _ask_model),
        ("list_roots", "Asks for the client's roots.", _ask_roots),
        ("request_state", "Remembers something between two calls.", _remember),
        ("tampered_state", "Trusts only a state of its own.", _remember),
        ("multiple_inputs", "Asks three things at once.", _ask_all),
        ("multi_round", "Asks one thing after another.", _ask_in_turn),
        ("capabilities", "Asks only what the client can answer.", _ask_what_is_offered),
    ]
    return [_tool(f"test_input_required_result_{name}", text, handler) for name, text, handler in tools]


def _more_input(requests: Mapping[str, Any], state: str) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": dict(requests), "requestState": state}


def _responses(call: Call) -> Mapping[str, Any]:
    responses: Mapping[str, Any] = call.params.get("inputResponses") or {}
    return responses


def _state(call: Call) -> str | None:
    state: str | None = call.params.get("requestState")
    return state


async def _ask_name(arguments: NoArguments, call: Call) -> str:
    answer = await call.client.ask("user_name", "elicitation/create", _NAME_FORM)
    return f"Hello, {(answer.get('content') or {}).get('name', 'stranger')}!"


async def _ask_model(arguments: NoArguments, call: Call) -> str:
    question = sample("What is the capital of France?")
    answer = await call.client.ask("capital_question", "sampling/createMessage", question)
    return f"Model said: {answer['content']['text']}"


async def _ask_roots(arguments: NoArguments, call: Call) -> str:
    answer = await call.client.ask("client_roots", "roots/list", {})
    return f"Client roots: {', '.join(root['uri'] for root in answer['roots'])}"


async def _remember(arguments: NoArguments, call: Call) -> ToolResult:
    state = _state(call)
    if state is None or "confirm" not in _responses(call):
        return _more_input(_CONFIRM, "asked-once")
    if state != "asked-once":
        raise ToolFailure("This is not the state that was given out")
    return "state-ok"


async def _ask_all(arguments: NoArguments, call: Call) -> ToolResult:
    requests = {
        "user_name": {"method": "elicitation/create", "params": _NAME_FORM},
        "greeting": {"method": "sampling/createMessage", "params": sample("Generate a greeting", 50)},
        "client_roots": {"method": "roots/list", "params": {}},
    }
    missing = {name: request for name, request in requests.items() if name not in _responses(call)}
    return _more_input(missing, "asked-for-all") if missing else "All inputs received"


async def _ask_in_turn(arguments: NoArguments, call: Call) -> ToolResult:
    known: dict[str, Any] = json.loads(_state(call) or "{}")
    for step, (wanted, question) in enumerate(_STEPS, start=1):
        name = f"step{step}"
        known |= _read_content(call, name)
        if wanted not in known:
            asked = form(f"Step {step}: {question}", {wanted: _TEXT})
            return _more_input(
                {name: {"method": "elicitation/create", "params": asked}}, json.dumps(known | {"at": step})
            )
    return f"{known['name']} likes {known['color']}"


_STEPS = (("name", "What is your name?"), ("color", "What is your favorite color?"))


def _read_content(call: Call, name: str) -> dict[str, Any]:
    answer = _responses(call).get(name) or {}
    return dict(answer.get("content") or {})


async def _ask_what_is_offered(arguments: NoArguments, call: Call) -> ToolResult:
    offered = call.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    requests = {
        "sampling": {"method": "sampling/createMessage", "params": sample("Say hello", 50)},
        "elicitation": {"method": "elicitation/create", "params": _NAME_FORM},
    }
    return _more_input({name: request for name, request in requests.items() if name in offered}, "asked")


# Tools that change what is on offer


def _change_tools(registry: Registry) -> list[Tool[Any]]:
    async def change_tools(arguments: NoArguments, call: Call) -> str:
        registry.add_tool(_tool("test_dynamic_tool", "Is here for a moment.", _simple_text))
        registry.remove_tool("test_dynamic_tool")
        return "The list of tools has changed"

    async def change_prompts(arguments: NoArguments, call: Call) -> str:
        registry.add_prompt(_prompt("test_dynamic_prompt", "Is here for a moment.", _simple_prompt))
        registry.remove_prompt("test_dynamic_prompt")
        return "The list of prompts has changed"

    return [
        _tool("test_trigger_tool_change", "Changes the list of tools.", change_tools),
        _tool("test_trigger_prompt_change", "Changes the list of prompts.", change_prompts),
    ]


# Prompts

Render = Callable[[Mapping[str, str], Call], Awaitable[Mapping[str, Any]]]


def _prompt(name: str, description: str, render: Render, *arguments: PromptArgument) -> Prompt:
    return Prompt(name, name.replace("_", " ").capitalize(), description, TOOLSET, arguments, render)


def _prompts() -> list[Prompt]:
    return [
        _prompt("test_simple_prompt", "Takes nothing.", _simple_prompt),
        _prompt(
            "test_prompt_with_arguments",
            "Takes two arguments.",
            _prompt_with_arguments,
            PromptArgument("arg1", "First test argument.", required=True, choices=_cities),
            PromptArgument("arg2", "Second test argument.", required=True),
        ),
        _prompt(
            "test_prompt_with_embedded_resource",
            "Embeds a resource.",
            _prompt_with_resource,
            PromptArgument("resourceUri", "The resource to embed.", required=True),
        ),
        _prompt("test_prompt_with_image", "Holds an image.", _prompt_with_image),
        _prompt("test_input_required_result_prompt", "Asks the user for the context.", _prompt_that_asks),
    ]


def _cities(call: Call) -> Sequence[str]:
    return ("paris", "park", "party", "test1", "test2")


def _messages(*contents: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": dict(content)} for content in contents]}


async def _simple_prompt(arguments: Any, call: Call) -> Any:
    return _messages(text_content("This is a simple prompt for testing."))


async def _prompt_with_arguments(arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
    return _messages(text_content("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'".format(**arguments)))


async def _prompt_with_resource(arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
    resource = embed_resource(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
    return _messages(resource, text_content("Please process the embedded resource above."))


async def _prompt_with_image(arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
    return _messages(IMAGE, text_content("Please analyze the image above."))


async def _prompt_that_asks(arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
    question = form("What context should the prompt use?", {"context": _TEXT})
    answer = await call.client.ask("user_context", "elicitation/create", question)
    return _messages(text_content(f"Use this context: {(answer.get('content') or {}).get('context', '')}"))


# Resources


class FixtureResources:
    """Three resources and a template."""

    _TEMPLATE = "test://template/{id}/data"

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        return [
            _resource("test://static-text", "static-text", "text/plain"),
            _resource("test://static-binary", "static-binary", "image/png"),
            _resource("test://watched-resource", "watched-resource", "text/plain"),
        ]

    def templates(self) -> Iterable[Mapping[str, Any]]:
        return [
            {
                "uriTemplate": self._TEMPLATE,
                "name": "template",
                "description": "Repeats its id.",
                "mimeType": "application/json",
            }
        ]

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        match uri:
            case "test://static-text":
                return [_text(uri, "text/plain", "This is the content of the static text resource.")]
            case "test://static-binary":
                return [{"uri": uri, "mimeType": "image/png", "blob": PNG}]
            case "test://watched-resource":
                return [_text(uri, "text/plain", "Watched resource content.")]
        found = re.fullmatch(r"test://template/([^/]+)/data", uri)
        if found is None:
            return None
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        return [_text(uri, "application/json", json.dumps(data))]

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        return [id for id in ("123", "124") if id.startswith(value)]


def _resource(uri: str, name: str, mime_type: str) -> dict[str, Any]:
    return {"uri": uri, "name": name, "description": f"The resource at {uri}.", "mimeType": mime_type}


def _text(uri: str, mime_type: str, text: str) -> dict[str, Any]:
    return {"uri": uri, "mimeType": mime_type, "text": text}
