"""Endpoints for other services: run a tool for a user, and read chunk windows for another Refdesk.

A service names the user it acts for. If keys are in use, naming another tenant, user or role needs a key with the role
`service`. The toolsets of the service's own key always apply.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refdesk.calls import ROLES, SERVICE, WINDOW_METHOD, Answer, Call, Caller, TenantId, UserId
from refdesk.errors import ERROR_META, DocumentNotFound, Forbidden, ToolFailure
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.error_mapping import http_status, log_unexpected, to_rpc_error
from refdesk.inbound.request_context import RequestContext, enter_caller_trace
from refdesk.validation import invalid_arguments

EXECUTE = "/internal/mcp/execute"
WINDOW = "/internal/retrieval/chunks/window"
PATHS = frozenset({EXECUTE, WINDOW})

B = TypeVar("B", bound=BaseModel)

_TRACE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    trace_id: str | None = Field(None, max_length=128)


class _User(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    user_id: str = Field(min_length=1, max_length=255)
    tenant_id: str = Field(min_length=1, max_length=255)
    roles: list[str] = []


class ExecuteRequest(_Body):
    """Request body: a tool to run for a user."""

    tool_name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}
    user: _User


class WindowRequest(_Body):
    """Request body: a chunk, and the number of chunks around it."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    tenant_id: str = Field(min_length=1, max_length=255)
    doc_id: str = Field(min_length=1)
    anchor_chunk_id: str = Field(min_length=1)
    window_before: int | None = Field(None, ge=0)
    window_after: int | None = Field(None, ge=0)
    radius: int | None = Field(None, ge=0)


class InternalEndpoints:
    """Handlers of the internal paths. Each returns a status and a body."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, path: str, body: Any, context: RequestContext) -> tuple[int, dict[str, Any]]:
        """Handle a request. Errors have the same shape, with the trace id."""
        trace_id = enter_caller_trace(context, {}).trace_id
        trace_id = _read_trace_id(body) or trace_id
        try:
            answer = self._execute if path == EXECUTE else self._window
            return await answer(body, context, trace_id)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unexpected(error, trace_id)
            return http_status(type(error)), _build_error(to_rpc_error(error).to_dict(), trace_id)

    async def _execute(self, body: Any, context: RequestContext, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = _validate(ExecuteRequest, body)
        caller = self._impersonate(context.caller, request.user)
        params = {"name": request.tool_name, "arguments": request.arguments}
        answer = await self._services.handle(Call("tools/call", params, caller, trace_id=trace_id))
        if answer.is_error:
            return _build_tool_failure(answer, trace_id)
        result = answer.structured if answer.structured is not None else answer.result
        return 200, {"status": "ok", "result": result, "trace_id": trace_id}

    async def _window(self, body: Any, context: RequestContext, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = _validate(WindowRequest, body)
        user = _User(user_id=context.caller.user, tenant_id=request.tenant_id)
        params = request.model_dump(exclude={"tenant_id", "trace_id"}, exclude_none=True)
        caller = self._impersonate(context.caller, user)
        answer = await self._services.handle(Call(WINDOW_METHOD, params, caller, trace_id=trace_id))
        return 200, {"status": "ok", **answer.result, "trace_id": trace_id}

    def _impersonate(self, caller: Caller, user: _User) -> Caller:
        """Return the caller for the user that a service names. Raises Forbidden if it may not."""
        tenant, name, roles = TenantId(user.tenant_id), UserId(user.user_id), frozenset(user.roles)
        if not self._services.has_keys or SERVICE in caller.roles:
            # The service may send roles of its own. Only those known here count.
            return replace(caller, user=name, tenant=tenant, roles=roles.intersection(ROLES), local=False)
        if tenant != caller.tenant:
            raise Forbidden(f"To act for another tenant takes a key with the role {SERVICE!r}")
        if name != caller.user or not roles <= caller.roles:
            raise Forbidden(f"To act for another user, or with more roles, takes a key with the role {SERVICE!r}")
        # Naming no roles must not remove them: a caller without roles may do everything.
        return replace(caller, roles=roles or caller.roles)


def _validate(model: type[B], body: Any) -> B:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise invalid_arguments(error, list(model.model_fields)) from None


def _build_tool_failure(answer: Answer, trace_id: str) -> tuple[int, dict[str, Any]]:
    data = answer.result.get("_meta", {}).get(ERROR_META, {})
    status = 404 if data.get("type") == DocumentNotFound.__name__ else 422
    return status, _build_error({"code": ToolFailure.code, "message": answer.text, "data": data}, trace_id)


def _build_error(error: dict[str, Any], trace_id: str) -> dict[str, Any]:
    return {"status": "error", "error": error, "trace_id": trace_id}


def _read_trace_id(body: Any) -> str | None:
    """Return the trace id in the body, if it's safe to log."""
    given = body.get("trace_id") if isinstance(body, dict) else None
    return given if isinstance(given, str) and _TRACE_ID.fullmatch(given) else None
