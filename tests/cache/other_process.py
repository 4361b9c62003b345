"""Another process with the same Redis: asks for one answer, many times at once, and says what it got.

    python -m tests.cache.other_process URL CALLERS [--hang]

With `--hang` it never finishes making the answer. What goes on is written to standard output, a line each: `making`
when it begins to make the answer, and at the end how many callers got which answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import orjson

from refdesk.cache.cache import WireAnswer
from refdesk.config.models import RedisConfig
from refdesk.config.types import Url
from refdesk.resilience.redis_connection import open_redis
from tests.cache.helpers import answer, key, make_redis_cache


async def main(url: str, callers: int, hangs: bool) -> None:
    async def make() -> WireAnswer:
        sys.stdout.write("making\n")
        sys.stdout.flush()
        if hangs:
            await asyncio.Event().wait()
        return answer(2)

    async with open_redis(RedisConfig(url=Url(url), timeout_seconds=60)) as link:
        kept = make_redis_cache(link)
        answers = await asyncio.gather(*(kept.answer(key(), 600, make) for _ in range(callers)))
    counts = Counter(str(given.answer["structuredContent"]["number"]) for given in answers)
    sys.stdout.write(orjson.dumps(counts).decode() + "\n")


asyncio.run(main(sys.argv[1], int(sys.argv[2]), "--hang" in sys.argv))
