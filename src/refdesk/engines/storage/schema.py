"""SQL schema of a tenant's database."""

from __future__ import annotations

from importlib import resources


def read_schema(engine: str) -> str:
    """Return the tables shared by both engines, followed by those of an engine's package."""
    packages = (__package__, engine)
    return "\n".join(resources.files(package).joinpath("schema.sql").read_text("utf-8") for package in packages)
