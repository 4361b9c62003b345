"""A process that adds some documents and ends when they are in, as the command line does.

python -m tests.engines.adding <folder> <name> <count>
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from refdesk.calls import TenantId
from refdesk.engines.base import NewDocument, TextSource
from tests.contracts.engine import finished
from tests.engines.desks import lone_engine_on

ACME = TenantId("acme")


async def main(folder: Path, name: str, count: int) -> None:
    async with lone_engine_on(folder) as engine:
        await engine.create_collection(ACME, "animals")
        given = [TextSource(f"{name} {n}", f"# {name} {n}\n\n{name}", f"{name}-{n}") for n in range(count)]
        asked = await engine.ingest(ACME, [NewDocument(source, "animals") for source in given])
        sys.stdout.write("queued\n")
        sys.stdout.flush()
        done = await finished(engine, [status.id for status in asked])
    sys.exit(any(status.status != "success" for status in done))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
