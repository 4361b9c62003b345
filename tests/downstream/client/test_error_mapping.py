"""Errors in the words of an application."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from refdesk import errors
from refdesk.downstream.client.error_mapping import ERRORS, map_error
from refdesk.errors import (
    BreakerOpen,
    CannotConvert,
    CannotFetch,
    CannotOpen,
    CannotReach,
    DeadlineExceeded,
    DocumentNotFound,
    EngineError,
    FileTooLarge,
    InvalidArguments,
    Overloaded,
    Problem,
    R2RMisconfigured,
    RateLimited,
    RefdeskError,
    ServerAway,
    ServerGone,
    ServerLacks,
    ServerRefused,
    ServerTalksNonsense,
    ServerTooSlow,
    Unauthenticated,
    UnknownTool,
    UnsupportedFile,
)

CODES = {"E001", "E002", "E003", "E101", "E102", "E201", "E202", "E203", "E204", "E205", "E302", "E303"}

BY_CODE = {
    -32700: ("E203", False),
    -32600: ("E203", False),
    -32602: ("E203", False),
    -32601: ("E204", False),
    -32603: ("E201", True),
    -32000: ("E201", True),
    -32001: ("E202", True),
    -32002: ("E302", True),
    -32003: ("E303", True),
}


@pytest.mark.parametrize("code", BY_CODE)
def test_the_error_of_a_server_goes_by_its_code(code: int) -> None:
    app = map_error(ServerRefused("docling", code, "the server's own words", {"why": "because"}))
    assert (app.code, app.retryable) == BY_CODE[code]
    assert (app.message, app.original_code) == ("the server's own words", code)
    assert app.user_message
    assert app.suggested_action


def test_the_catalogue_holds_these_codes_and_no_other() -> None:
    assert {code: (entry.code, entry.retryable) for code, entry in ERRORS.items()} == BY_CODE


@pytest.mark.parametrize("code", [-32004, -32050, -32099, -1, 0, 404])
def test_an_unknown_code_may_pass(code: int) -> None:
    app = map_error(ServerRefused("docling", code, "odd"))
    assert (app.code, app.retryable, app.original_code) == ("E201", True, code)


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (ServerLacks("no tools"), "E205", False),
        (ServerTooSlow("slow"), "E202", True),
        (DeadlineExceeded("slow"), "E202", True),
        (TimeoutError(), "E202", True),
        (ServerAway("away"), "E201", True),
        (ServerGone("gone"), "E201", True),
        (BreakerOpen("left alone", retry_after=3), "E201", True),
        (ServerTalksNonsense("nonsense"), "E201", True),
        (ConnectionRefusedError("refused"), "E201", True),
        (Overloaded("full"), "E201", True),
        (RuntimeError("nobody foresaw it"), "E201", True),
        (UnknownTool("no such tool"), "E204", False),
        (InvalidArguments([Problem("query", "is missing")]), "E203", False),
        (CannotOpen("no such file"), "E001", False),
        (UnsupportedFile("an .exe"), "E002", False),
        (FileTooLarge("101 MB"), "E003", False),
        (CannotFetch("no host"), "E101", False),
        (CannotReach("refused"), "E102", True),
        (CannotConvert("too large"), "E302", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_what_keeps_a_server_from_answering_has_a_code_too(error: Exception, code: str, is_retryable: bool) -> None:
    app = map_error(error)
    assert (app.code, app.retryable) == (code, is_retryable)
    assert app.message
    assert app.suggested_action
    assert app.original_code is None, "no server sent it"
    assert "originalMCPCode" not in app.to_dict()


def test_application_error_is_an_object_with_the_keys_of_the_catalogue() -> None:
    assert map_error({"code": -32001, "message": "after 60 s"}).to_dict() == {
        "code": "E202",
        "message": "after 60 s",
        "userMessage": "The request took too long",
        "suggestedAction": "Try again",
        "retryable": True,
        "originalMCPCode": -32001,
    }


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (Unauthenticated("Invalid API key"), "E201", False),
        (EngineError("the engine does not answer"), "E201", True),
        (BreakerOpen("left alone"), "E201", True),
        (RateLimited("too fast", retry_after=1), "E201", True),
        (R2RMisconfigured("refused"), "E201", False),
        (DeadlineExceeded("too slow"), "E202", True),
        (DocumentNotFound("no document has this handle"), "E303", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_another_desk_says_which_error_it_is(error: RefdeskError, code: str, is_retryable: bool) -> None:
    """Its numbers from -32001 to -32004 mean something else than those of a converting server."""
    app = map_error({"code": error.code, "message": error.detail, "data": error.data})
    assert (app.code, app.retryable, app.original_code) == (code, is_retryable, error.code)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        [1],
        {"type": "Unauthenticated"},
        {"type": "Problem", "retryable": True, "detail": ""},
        {"type": []},
    ],
)
def test_data_that_only_looks_like_a_desks_changes_nothing(data: Any) -> None:
    assert map_error({"code": -32002, "message": "failed", "data": data}).code == "E302"


@pytest.mark.parametrize("error", [{}, {"code": "x", "message": None}, {"code": True}, {"code": None, "message": 5}])
def test_an_error_without_a_code_or_a_message_is_mapped_all_the_same(error: dict[str, Any]) -> None:
    app = map_error(error)
    assert app.code == "E201"
    assert app.message
    assert app.original_code is None


def test_every_error_of_ours_has_an_app_code() -> None:
    kinds = {kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, RefdeskError)}
    for kind in kinds - {ServerRefused}:
        error = kind.__new__(kind)
        RefdeskError.__init__(error, "why")
        assert map_error(error).code in CODES, kind
