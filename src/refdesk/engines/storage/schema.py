"""The tables of a tenant's file, as SQL."""

from __future__ import annotations

from importlib import resources


def schema_for(engine: str) -> str:
    """The tables that both engines have, and after them those that an engine's package adds."""
    packages = (__package__, engine)
    return "\n".join(resources.files(package).joinpath("schema.sql").read_text("utf-8") for package in packages)
