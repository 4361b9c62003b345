"""Client callbacks over the SDK: sessions, stdio and continued requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.methods import INPUT_REQUIRED_METHODS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from refdesk.calls import LOG_LEVELS, ClientRefused, InputRequired, LogLevel
from refdesk.errors import ClientCannot, MissingCapability
from refdesk.inbound.server_requests import (
    CAPABILITIES,
    build_unsupported_error,
    declares,
    get_capabilities,
    require_form,
    validate_answer,
)

Context = ServerRequestContext[Any, Any]


class SdkClient:
    """The client of a request that the SDK handles."""

    def __init__(self, ctx: Context) -> None:
        self.context = ctx

    @property
    def key(self) -> object:
        connection = get_connection(self.context)
        return connection.session_id or connection

    @property
    def uses_input_required(self) -> bool:
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can(self, method: str) -> bool:
        is_possible = self._can_return_input() if self.uses_input_required else self.context.session.can_send_request
        return is_possible and declares(self._get_capabilities(), method)

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        await self.context.session.report_progress(done, total, message)

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        if level in self._get_log_levels():
            params = types.LoggingMessageNotificationParams(level=level, data=data, logger=logger)
            await self.context.session.send_notification(
                types.LoggingMessageNotification(params=params), related_request_id=self.context.request_id
            )

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.uses_input_required:
            return self._ask_by_input_required(name, method, params)
        if not self.context.session.can_send_request:
            raise ClientCannot(f"This needs {method} from the client, over a session; connect with one.")
        capabilities = self._get_capabilities()
        if not declares(capabilities, method):
            raise build_unsupported_error(method)
        require_form(capabilities, method, params)
        try:
            # The SDK's own method only passes on the fields of its models.
            answer = await self.context.session._request_outbound.send_raw_request(method, dict(params))
        except MCPError as error:
            raise ClientRefused(method, error.error.model_dump(mode="json", exclude_none=True)) from error
        return validate_answer(answer, method, self.context.protocol_version)

    def _ask_by_input_required(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        given = (self.context.params or {}).get("inputResponses") or {}
        if name in given:
            answer: Mapping[str, Any] = given[name]
            return answer
        if method not in CAPABILITIES or not self._can_return_input():
            raise ClientCannot(f"The client cannot be asked {method} during {self.context.method}.")
        capabilities = self._get_capabilities()
        if not declares(capabilities, method):
            raise MissingCapability(CAPABILITIES[method])
        require_form(capabilities, method, params)
        raise InputRequired({name: {"method": method, "params": params}})

    def _can_return_input(self) -> bool:
        return self.context.method in INPUT_REQUIRED_METHODS

    def _get_capabilities(self) -> Mapping[str, Any]:
        return get_capabilities(get_connection(self.context))

    def _get_log_levels(self) -> frozenset[LogLevel]:
        allowed = allowed_log_levels(self.context.protocol_version, self.context.meta)
        if self.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return allowed
        threshold = get_connection(self.context).state.get("log_level", "debug")
        return frozenset(LOG_LEVELS[LOG_LEVELS.index(threshold) :])


def get_connection(ctx: Context) -> Connection:
    """Return the SDK's connection of a request."""
    # Private in the SDK until its context is reworked. One reason for the pin below 2.4.
    return ctx.session._connection
