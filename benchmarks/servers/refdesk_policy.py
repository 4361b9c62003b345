"""Refdesk as `refdesk serve` runs it, with an echo tool added and its cache as the benchmark wants it.

Arguments: the data folder; `none` or `redis` for the cache, `broken` for documents in an R2R that is not there, or
anything else for a cache in memory; the address of Redis.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop
from listening import announce
from refdesk_echo import ECHO

from refdesk.app import open_desk
from refdesk.config.loading import load
from refdesk.config.models import CacheConfig, Config
from refdesk.inbound.http_server import bind, serve_http
from refdesk.telemetry.log import Log


def configured(data: str, cache: str, redis_url: str) -> Config:
    """The configuration of such a desk."""
    given = {"data_dir": data, "server.port": 0, "project": "benchmark"}
    if cache == "none":
        given |= {f"cache.ttl.{name}": 0 for name in type(CacheConfig().ttl).model_fields}
    elif cache == "redis":
        given |= {"cache.type": "redis", "cache.redis.url": redis_url}
    elif cache == "broken":
        given |= {"r2r.api_url": "http://127.0.0.1:9", "r2r.email": "nobody@example.com", "r2r.password": "none"}
    return load(None, {}, given)


async def serve(config: Config) -> None:
    """Serve until told to stop."""
    log = Log("info", "json")
    log.capture_standard_logging()
    listener = bind(config.server)
    async with open_desk(config, log=log) as desk:
        desk.registry.add_tool(ECHO)
        await serve_http(desk, config, [listener], lambda: announce(listener))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    uvloop.run(serve(configured(*sys.argv[1:])))
