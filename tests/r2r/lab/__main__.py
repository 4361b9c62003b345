"""`python -m tests.r2r.lab install` brings in what the lab needs; `up` keeps the lab up, to be looked at by hand."""

from __future__ import annotations

import signal
import sys
import time

from tests.r2r.lab import Unavailable, lab
from tests.r2r.lab.wheels import CACHE, PATIENT_SECONDS, install_programs


def main(task: str) -> None:
    began = time.monotonic()
    programs = install_programs(seconds=PATIENT_SECONDS)
    _say(f"R2R and Postgres are in {CACHE} ({time.monotonic() - began:.1f} s)")
    if task == "up":
        with lab(programs) as r2r:
            account = r2r.account()
            _say(f"R2R is at {r2r.url}, for {account.email} with {account.password}; its logs are in {r2r.folder}")
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _say(text: str) -> None:
    sys.stderr.write(f"· {text}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "up")
    except Unavailable as why:
        _say(why.detail)
        sys.exit(3)
