"""Programs that tests run and that may be missing: a test without its program is skipped, and says what to install."""

from __future__ import annotations

import shutil

import pytest

PACKAGES = {"systemd-analyze": "systemd"}
"""Debian packages whose name differs from their program's."""


def missing_reason(program: str) -> str:
    """Return the reason for skipping a test whose program is missing."""
    return f"{program} is not installed (package {PACKAGES.get(program, program)})"


def find_program(program: str) -> str:
    """Return the path of a program, or skip the test that asks for it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(missing_reason(program))
    return path


def needs(program: str) -> pytest.MarkDecorator:
    """Mark tests to be skipped where a program is missing."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=missing_reason(program))
