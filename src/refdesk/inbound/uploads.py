"""Upload endpoint for files that are too large for a JSON message. The response holds the file's URI."""

from __future__ import annotations

from typing import IO, Any
from urllib.parse import parse_qs

from anyio import to_thread

from refdesk.calls import UPLOAD_METHOD, Call
from refdesk.documents.conversion_limits import MAX_FILE_BYTES, MEGABYTE
from refdesk.errors import Refused, StorageError
from refdesk.inbound.asgi import CLOSE, ClientGone, Headers, Receive, Reject, build_retry_after
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.error_mapping import http_status
from refdesk.inbound.request_context import RequestContext, enter_caller_trace

UPLOADS = "/api/uploads"

WRITE_SIZE = MEGABYTE
"""Bytes to buffer before each write to disk."""

FORM_TYPES = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")
"""Content types that pages of other origins can send without a preflight request."""


class Uploads:
    """Upload endpoint. A file belongs to one tenant."""

    def __init__(self, services: Services) -> None:
        self._handle = services.handle
        self._conversions = services.conversions

    async def store(self, context: RequestContext, query: bytes, headers: Headers, receive: Receive) -> dict[str, Any]:
        """Store a request's body as a file, named by the query parameter `name`."""
        await self._authorize(enter_caller_trace(context, {}))
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in FORM_TYPES:
            raise Reject(415, {"detail": "Send the file itself, with Content-Type: application/octet-stream"}, (CLOSE,))
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > MAX_FILE_BYTES:
            raise _build_too_large()
        name = parse_qs(query.decode("latin-1")).get("name", ["document"])[0]
        async with self._conversions.create_upload() as file:
            try:
                size = await _receive_into(file, receive)
            except OSError as error:
                raise StorageError(f"The upload cannot be kept: {error.strerror or error}") from error
            uri = await self._conversions.keep_upload(context.caller.tenant, file, name)
        return {"uri": uri, "size": size}

    async def _authorize(self, context: RequestContext) -> None:
        """Run the policies before any of the body is read."""
        try:
            await self._handle(Call(UPLOAD_METHOD, {}, context.caller, trace_id=context.trace_id))
        except Refused as error:
            wait = () if error.retry_after is None else (build_retry_after(error.retry_after),)
            raise Reject(http_status(type(error)), {"detail": error.detail}, (CLOSE, *wait)) from None


async def _receive_into(file: IO[bytes], receive: Receive) -> int:
    size, more = 0, True
    buffer = bytearray()
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        buffer += message.get("body", b"")
        more = message.get("more_body", False)
        if size + len(buffer) > MAX_FILE_BYTES:
            raise _build_too_large()
        if len(buffer) >= WRITE_SIZE or not more:
            size += await to_thread.run_sync(file.write, bytes(buffer))
            buffer.clear()
    await to_thread.run_sync(file.flush)
    return size


def _build_too_large() -> Reject:
    detail = f"The file is larger than {MAX_FILE_BYTES // MEGABYTE} MB; split it into smaller ones"
    return Reject(413, {"detail": detail}, (CLOSE,))
