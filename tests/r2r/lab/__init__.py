"""A real R2R on loopback, with its own Postgres and a provider of models that can be told to fail.

    with lab() as r2r:
        email, password = r2r.account()
        r2r.provider.fail(chat=500)
        r2r.kill()
        r2r.restart()

Nothing of it outlives the process that opened it. Its logs stay in `.cache/r2r/runs`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2

from tests.ports import find_free_port
from tests.r2r.lab.postgres import Postgres
from tests.r2r.lab.processes import LabFailure, Program
from tests.r2r.lab.wheels import CACHE, Programs, Unavailable, install_programs
from tests.waiting import PATIENCE_SECONDS

__all__ = ["Account", "Lab", "LabFailure", "Unavailable", "lab"]

SECRET = "the lab's secret, with which R2R signs its tokens"
KEPT_RUNS = 3
"""Whose logs stay."""

START_SECONDS = 180.0
"""R2R takes 6 to 12 seconds to start on an idle machine, most of them for imports, and ten times that on a busy one."""


class Account(NamedTuple):
    """Who may use R2R."""

    email: str
    password: str


ADMINISTRATOR = Account("admin@example.com", "change_me_immediately")
"""Whom R2R makes when it first starts."""


class Provider:
    """The models that R2R asks, seen from a test."""

    def __init__(self, folder: Path) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self._http = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS, verify=False, trust_env=False
        )
        command: list[str | Path] = [sys.executable, "-I", Path(__file__).with_name("provider.py"), str(port)]
        self._program = Program(command, folder / "provider.log")
        self._program.wait_until(self._answers)

    def fail(self, *, embeddings: int = 0, chat: int = 0) -> None:
        """Have requests of these kinds answered with these statuses from now on."""
        self._http.post("/control", json={"embeddings": embeddings, "chat": chat}).raise_for_status()

    def heal(self) -> None:
        """Have everything work again."""
        self.fail()

    @contextmanager
    def failing(self, **given: Any) -> Iterator[None]:
        """For a while."""
        self.fail(**given)
        try:
            yield
        finally:
            self.heal()

    def counts(self) -> dict[str, int]:
        """How many requests of each kind there have been."""
        counted: dict[str, int] = self._http.get("/counts").json()
        return counted

    def stop(self) -> None:
        self._http.close()
        self._program.stop()

    def _answers(self) -> bool:
        return _answers(self._http, "/")


class Lab:
    """R2R and what is behind it."""

    def __init__(self, programs: Programs, folder: Path, postgres: Postgres, provider: Provider) -> None:
        self.folder = folder
        self.provider = provider
        self._programs = programs
        self._port = find_free_port()
        self._environment = _environment(programs, self._port, postgres, provider)
        self.url = f"http://127.0.0.1:{self._port}"
        self._http = httpx2.Client(base_url=f"{self.url}/v3", timeout=PATIENCE_SECONDS, verify=False, trust_env=False)
        self._server: Program | None = None
        self._tokens: dict[Account, str] = {}

    def restart(self) -> None:
        """Start R2R, after ending the one that runs; it is ready when this returns."""
        self._end(in_order=True)
        command = [self._programs.python, Path(__file__).with_name("serve.py")]
        self._server = Program(command, self.folder / "r2r.log", environment=self._environment)
        self._server.wait_until(lambda: _answers(self._http, "/health"), START_SECONDS)

    def kill(self) -> None:
        """End R2R without notice; its port refuses connections from then on."""
        self._end(in_order=False)

    def account(self, limits: Mapping[str, Any] | None = None) -> Account:
        """A new account of its own; `limits` is what it may ask for in a minute, in R2R's words."""
        account = Account(f"lab-{uuid4().hex}@example.com", "Lab-Passw0rd!")
        user = self.ask(ADMINISTRATOR, "POST", "/users", json=account._asdict())["id"]
        if limits is not None:
            self.ask(ADMINISTRATOR, "POST", f"/users/{user}", json={"limits_overrides": dict(limits)})
        return account

    def ask(self, account: Account, method: str, path: str, **given: Any) -> Any:
        """What R2R itself answers, with nothing of ours between."""
        headers = {"authorization": f"Bearer {self._token(account)}"}
        return self._http.request(method, path, headers=headers, **given).raise_for_status().json()["results"]

    def api_key(self, account: Account) -> str:
        """A key that stands for an account."""
        user = self.ask(account, "GET", "/users/me")["id"]
        return str(self.ask(account, "POST", f"/users/{user}/api-keys", json={"name": "lab"})["api_key"])

    def revoke_access(self, token: str) -> None:
        """Have R2R take an access token no longer."""
        self._http.post("/users/logout", headers={"authorization": f"Bearer {token}"}).raise_for_status()

    def use_up(self, refresh_token: str) -> None:
        """Have R2R take a refresh token no longer, which is good for one use."""
        self._http.post("/users/refresh-token", json=refresh_token).raise_for_status()

    def close(self) -> None:
        self._end(in_order=False)  # nothing is left to be lost, and a second to be gained
        self._http.close()

    def _token(self, account: Account) -> str:
        """An access token, as R2R gives it; it holds for longer than any run."""
        if account not in self._tokens:
            form = {"username": account.email, "password": account.password}
            answer = self._http.post("/users/login", data=form).raise_for_status()
            self._tokens[account] = answer.json()["results"]["access_token"]["token"]
        return self._tokens[account]

    def _end(self, *, in_order: bool) -> None:
        if self._server is not None:
            self._server.stop() if in_order else self._server.kill()
            self._server = None


@contextmanager
def lab(programs: Programs | None = None) -> Iterator[Lab]:
    """The lab, up and empty; raises `Unavailable` where it cannot be had."""
    programs = programs or install_programs()
    folder = _new_folder()
    with ExitStack() as stack:
        provider = Provider(folder)
        stack.callback(provider.stop)
        postgres = Postgres(programs.postgres, folder)
        stack.callback(shutil.rmtree, folder / "postgres")
        stack.callback(postgres.stop)
        r2r = Lab(programs, folder, postgres, provider)
        stack.callback(r2r.close)
        r2r.restart()
        yield r2r


def _environment(programs: Programs, port: int, postgres: Postgres, provider: Provider) -> dict[str, str]:
    """Only what R2R needs: nothing of it may come from, or go to, another machine."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(CACHE),
        "R2R_CONFIG_PATH": str(Path(__file__).with_name("r2r.toml")),
        "R2R_HOST": "127.0.0.1",
        "R2R_PORT": str(port),
        "R2R_SECRET_KEY": SECRET,
        "R2R_PROJECT_NAME": "lab",
        "R2R_POSTGRES_HOST": "127.0.0.1",
        "R2R_POSTGRES_PORT": str(postgres.port),
        "R2R_POSTGRES_USER": postgres.user,
        "R2R_POSTGRES_PASSWORD": "none is asked for",
        "R2R_POSTGRES_DBNAME": postgres.database,
        "OPENAI_API_KEY": "none is asked for",
        "OPENAI_BASE_URL": provider.url,
        "OPENAI_API_BASE": provider.url,
        "MISTRAL_API_KEY": "none is used",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "TIKTOKEN_CACHE_DIR": str(programs.tokenizers),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _new_folder() -> Path:
    """A folder for this run; those of the oldest go."""
    runs = CACHE / "runs"
    runs.mkdir(exist_ok=True)
    for old in sorted(runs.iterdir())[: -KEPT_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
    folder = runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    folder.mkdir()
    return folder


def _answers(http: httpx2.Client, path: str) -> bool:
    with suppress(httpx2.TransportError):
        return http.get(path).is_success
    return False
