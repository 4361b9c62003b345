"""Request body reader with a limit per body and a limit for all bodies in memory."""

from __future__ import annotations

from refdesk.inbound.asgi import CLOSE, RETRY_SOON, ClientGone, Receive, Reject


class BodyReader:
    """Reader that counts every byte of a body against the shared limit until the body is released."""

    def __init__(self, max_bytes: int, max_bytes_in_flight: int) -> None:
        self._max_bytes = max_bytes
        self._max_in_flight = max_bytes_in_flight
        self.in_flight = 0

    async def read(self, receive: Receive, declared: bytes | None) -> bytes:
        """Read a whole body. The caller must `release` it once the request is answered."""
        if declared is not None and declared.isdigit() and int(declared) > self._max_bytes:
            raise self._build_too_large()
        chunks: list[bytes] = []
        held = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                held += len(chunk)
                self.in_flight += len(chunk)
                self._check(held)
                chunks.append(chunk)
                more = message.get("more_body", False)
        except BaseException:
            self.in_flight -= held
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self, body: bytes) -> None:
        """Return a body's bytes to the shared limit."""
        self.in_flight -= len(body)

    def _check(self, held: int) -> None:
        if held > self._max_bytes:
            raise self._build_too_large()
        if self.in_flight > self._max_in_flight:
            detail = "The server is receiving too much at once; try again in a moment"
            raise Reject(503, {"detail": detail}, (CLOSE, RETRY_SOON))

    def _build_too_large(self) -> Reject:
        return Reject(413, {"detail": f"The body is larger than {self._max_bytes} bytes"}, (CLOSE,))
