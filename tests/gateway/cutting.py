"""A proxy between the desk and a server that cuts the line in the middle of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cutter:
    """Passes everything on; with `after` set, the next answers are cut off after so many bytes."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.after: int | None = None
        self.cuts = 0
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()

    def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        up = asyncio.ensure_future(self._pump(reader, there_writer))
        down = asyncio.ensure_future(self._pump_answers(there_reader, writer))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for end in (writer, there_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()

    async def _pump_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            if self.after is not None:
                self.cuts += 1
                writer.write(piece[: self.after])
                await writer.drain()
                return
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def cutting(port: int) -> AsyncIterator[Cutter]:
    """Run it in this loop, before the server on that port."""
    cutter = Cutter(port)
    server = await asyncio.start_server(cutter.on_connection, "127.0.0.1", 0)
    cutter.port = server.sockets[0].getsockname()[1]
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
