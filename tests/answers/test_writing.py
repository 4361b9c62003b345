"""Who writes an answer: the endpoint, the client's model, or nobody but the documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from refdesk.answers import Answers, Question, open_answers
from refdesk.calls import SILENT, Client, InputRequired
from refdesk.config.models import AnswersConfig
from refdesk.errors import ClientCannot, MissingCapability, WriterFailed
from tests.answers.endpoint import Endpoint, failure, running_endpoint, stream_answer
from tests.answers.sample_hits import BACKUP, FORMATS, PORT

pytestmark = pytest.mark.anyio

HITS = (PORT, BACKUP, FORMATS)
QUESTION = Question("Which TCP port does the server listen on by default?", max_tokens=90, temperature=0.2)


def message(text: str, model: str = "theirs") -> dict[str, Any]:
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": model}


@dataclass
class Session(Client):
    """A client of a session: it is asked, and answers one after the other."""

    answers: list[Any]
    asked: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Any:
        self.asked.append((name, method, params))
        return self.answers[len(self.asked) - 1]


@dataclass
class Stateless(Client):
    """A client of the stateless revision: a call brings the answers to what the one before it asked for."""

    given: Mapping[str, Any] = field(default_factory=dict)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Any:
        if name in self.given:
            return self.given[name]
        raise InputRequired({name: {"method": method, "params": params}})


class Incapable(Client):
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Any:
        raise self.error


@asynccontextmanager
async def answers_of(**given: Any) -> AsyncIterator[Answers]:
    async with open_answers(AnswersConfig.model_validate(given)) as answers:
        yield answers


@asynccontextmanager
async def endpoint_saying(*said: bytes) -> AsyncIterator[tuple[Answers, Endpoint]]:
    async with running_endpoint(*said) as endpoint, answers_of(api_url=endpoint.url) as answers:
        yield answers, endpoint


async def test_an_endpoint_that_is_set_writes_and_the_client_is_not_asked() -> None:
    client = Session([])
    async with endpoint_saying(stream_answer("It is 5432 [1], see also [3].")) as (answers, _):
        written = await answers.write(QUESTION, HITS, client)
    assert (written.text, written.model) == ("It is 5432 [1], see also [3].", "stub-1")
    assert (written.cited, written.found) == ((0, 2), True)
    assert client.asked == []


@pytest.mark.parametrize("refused", ["It is 5432 [4].", "It is 5432.", "See `rows[1]`."])
async def test_an_answer_without_sound_citations_gets_a_second_try(refused: str) -> None:
    async with endpoint_saying(stream_answer(refused), stream_answer("It is 5432 [1].")) as (answers, endpoint):
        written = await answers.write(QUESTION, HITS, SILENT)
    assert written.text == "It is 5432 [1]."
    first, second = (body["messages"][1]["content"] for body in endpoint.bodies)
    assert "refused" in second
    assert "refused" not in first


async def test_after_two_such_answers_the_documents_speak() -> None:
    async with endpoint_saying(stream_answer("It is 5432 [9].")) as (answers, endpoint):
        written = await answers.write(QUESTION, HITS, SILENT)
    assert len(endpoint.bodies) == 2
    assert written.model == "extractive"
    assert written.cited == (0,)
    assert "[9]" not in written.text


async def test_a_model_may_say_that_the_documents_do_not_hold_it() -> None:
    async with endpoint_saying(stream_answer("No answer found in your documents.")) as (answers, _):
        written = await answers.write(QUESTION, HITS, SILENT)
    assert (written.found, written.cited, written.model) == (False, (), "stub-1")


async def test_a_failing_endpoint_is_not_hidden() -> None:
    async with endpoint_saying(failure("500 Internal Server Error")) as (answers, _):
        with pytest.raises(WriterFailed):
            await answers.write(QUESTION, HITS, SILENT)


async def test_without_hits_no_model_is_asked() -> None:
    async with endpoint_saying(stream_answer("It is 5432.")) as (answers, endpoint):
        written = await answers.write(QUESTION, (), SILENT)
    assert not written.found
    assert endpoint.bodies == []


async def test_the_clients_own_model_writes_when_it_offers_that() -> None:
    client = Session([message("It is 5432 [1].")])
    async with answers_of() as answers:
        written = await answers.write(Question("Which port?", 90, 0.2, "small"), HITS, client)
    assert (written.text, written.model, written.cited) == ("It is 5432 [1].", "theirs", (0,))
    _, method, params = client.asked[0]
    assert method == "sampling/createMessage"
    assert (params["maxTokens"], params["temperature"]) == (90, 0.2)
    assert params["modelPreferences"] == {"hints": [{"name": "small"}]}
    assert PORT.text in params["messages"][0]["content"]["text"]


async def test_its_message_may_have_several_parts() -> None:
    parts = [{"type": "text", "text": "It is"}, {"type": "image", "data": ""}, {"type": "text", "text": "5432 [1]."}]
    async with answers_of() as answers:
        written = await answers.write(QUESTION, HITS, Session([{"content": parts}]))
    assert (written.text, written.model) == ("It is\n\n5432 [1].", "sampling")


async def test_the_clients_model_gets_a_second_try_under_another_name() -> None:
    client = Session([message("It is 5432."), message("It is 5432 [1].")])
    async with answers_of() as answers:
        written = await answers.write(QUESTION, HITS, client)
    assert written.text == "It is 5432 [1]."
    assert client.asked[0][0] != client.asked[1][0]


@pytest.mark.parametrize("odd", [{}, {"content": None}, {"content": [7]}, [], None, {"content": {"type": "audio"}}])
async def test_an_answer_that_is_no_message_leaves_it_to_the_documents(odd: Any) -> None:
    async with answers_of() as answers:
        written = await answers.write(QUESTION, HITS, Session([odd, odd]))
    assert written.model == "extractive"


@pytest.mark.parametrize(
    "client",
    [SILENT, Incapable(ClientCannot("no")), Incapable(MissingCapability("sampling"))],
    ids=["plain", "old", "new"],
)
async def test_a_client_without_a_model_gets_the_documents_own_sentences(client: Client) -> None:
    async with answers_of() as answers:
        written = await answers.write(QUESTION, HITS, client)
    assert written.model == "extractive"
    assert "5432" in written.text


async def test_sampling_can_be_switched_off() -> None:
    client = Session([message("It is 5432 [1].")])
    async with answers_of(sampling=False) as answers:
        written = await answers.write(QUESTION, HITS, client)
    assert (written.model, client.asked) == ("extractive", [])


async def _rounds(answers: Answers, replies: list[str]) -> tuple[Any, int]:
    """Call until there is an answer, each time with the answers to the last questions alone."""
    given: Mapping[str, Any] = {}
    for round_number, reply in enumerate([*replies, ""]):
        try:
            return await answers.write(QUESTION, HITS, Stateless(given)), round_number
        except InputRequired as asked:
            given = {name: message(reply) for name in asked.requests}
    raise AssertionError("asked more often than there are replies")


async def test_a_stateless_client_is_asked_by_ending_the_call() -> None:
    async with answers_of() as answers:
        written, rounds = await _rounds(answers, ["It is 5432 [1]."])
    assert (written.text, rounds) == ("It is 5432 [1].", 1)


async def test_a_stateless_client_is_asked_again_once_and_not_for_ever() -> None:
    async with answers_of() as answers:
        better, two = await _rounds(answers, ["It is 5432.", "It is 5432 [1]."])
        worse, also_two = await _rounds(answers, ["It is 5432.", "It is 5432 [8].", "never asked for"])
    assert (better.text, two) == ("It is 5432 [1].", 2)
    assert (worse.model, also_two) == ("extractive", 2)


async def test_an_answer_about_other_hits_is_not_taken_for_these() -> None:
    async with answers_of() as answers:
        with pytest.raises(InputRequired) as asked:
            await answers.write(QUESTION, HITS, Stateless())
        given = {name: message("It is 5432 [1].") for name in asked.value.requests}
        with pytest.raises(InputRequired) as is_retry:
            await answers.write(QUESTION, (BACKUP, PORT), Stateless(given))
    assert set(is_retry.value.requests).isdisjoint(given)
