"""Another process with the same Redis: asks for one answer, many times at once, and says what it got.

    python -m tests.cache.other_process URL CALLERS SECONDS

An answer takes so many seconds to make. What goes on is written to standard output, a line each: `making` when it
begins to make the answer, and at the end how many callers got which answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import orjson

from refdesk.cache import WireAnswer, open_cache
from refdesk.config import CacheConfig, RedisConfig
from refdesk.config.kinds import Url
from refdesk.resilience.redis import open_redis
from tests.cache.kitchen import answer, key


async def main(url: str, callers: int, seconds: float) -> None:
    async def make() -> WireAnswer:
        sys.stdout.write("making\n")
        sys.stdout.flush()
        await asyncio.sleep(seconds)
        return answer(2)

    async with (
        open_redis(RedisConfig(url=Url(url), timeout_seconds=30)) as link,
        open_cache(CacheConfig(), link) as kept,
    ):
        answers = await asyncio.gather(*(kept.answer(key(), 60, make) for _ in range(callers)))
    counts = Counter(str(given.answer["structuredContent"]["number"]) for given in answers)
    sys.stdout.write(orjson.dumps(counts).decode() + "\n")


asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
