"""R2R as it is, run by its own Python, but for one thing: passwords are hashed as lightly as bcrypt allows.

R2R has a setting for it, `crypto.bcrypt_rounds`, and loses it on the way. By its default a login takes a third of a
second, in which R2R does nothing else, and every test has one.
"""

from __future__ import annotations

import runpy
from importlib import import_module
from typing import Any

LEAST_ROUNDS = 4

bcrypt: Any = import_module("bcrypt")  # R2R brings it, and only R2R
salt_of = bcrypt.gensalt


def light_salt(rounds: int = LEAST_ROUNDS, prefix: bytes = b"2b") -> Any:
    return salt_of(LEAST_ROUNDS, prefix)


bcrypt.gensalt = light_salt
runpy.run_module("r2r.serve", run_name="__main__")
