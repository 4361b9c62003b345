"""A real desk, and Chromium to look at it with.

    def test_something(page: Page, desk: DeskProcess) -> None:
        page.goto(f"{desk.url}/console/")

`page` fails its test when the page reports an error, breaks its own content policy or asks another host for anything.
Set REFDESK_SCREENSHOTS to a folder to keep what `shoot` sees.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Error, Page, Request, expect, sync_playwright

from tests.console.browser.desks import HANDBOOK, DeskProcess, Keyed, desk_process, keyed_desk

HERE = Path(__file__).parent

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What the browser is called, where it is on the path."""

THEMES = ("light", "dark")

PATIENCE_MS = 20_000
"""How long a page may take to become as expected; only a page that never does takes as long."""

expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Findings:
    """What went wrong in a page, beside what a test looks at."""

    host: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of messages that a test brings about on purpose."""

    def watch(self, page: Page) -> None:
        """Note errors, dialogs, new windows and requests that leave for another host."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def unexpected(self) -> list[str]:
        """Problems that no test asked for."""
        return [problem for problem in self.problems if not any(part in problem for part in self.expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.host, "data:", "blob:")):
            self.problems.append(f"request: {request.url}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with a browser together, after all others, so that they need one browser and one desk."""
    items.sort(key=lambda item: item.path.is_relative_to(HERE))


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeskProcess]:
    """A desk with its manual and a handbook of a team. Tests leave both as they are; what they add goes elsewhere."""
    with desk_process(tmp_path_factory.mktemp("desk")) as desk:
        desk.add("Deploy handbook", HANDBOOK, "handbook", team="release")
        yield desk


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """A desk that wants a key, with a document of the default tenant."""
    with keyed_desk(tmp_path_factory.mktemp("keyed")) as keyed:
        keyed.desk.add("House rules", "Shut the door.", "rules")
        yield keyed


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. Of this folder and no wider: while it is open no other test can run a loop of its own."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            # A container has one user, under whom Chromium's own sandbox does not work.
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium to be had: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@contextmanager
def looked_at(browser: Browser, host: str, **options: Any) -> Iterator[tuple[Page, Findings]]:
    """A page in a browser profile of its own, and what goes wrong in it."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, findings = context.new_page(), Findings(host)
    findings.watch(page)
    try:
        yield page, findings
    finally:
        context.close()


@pytest.fixture
def findings() -> Findings:
    """Of the test's `page`; a test that makes something fail adds what it expects."""
    return Findings("")


@pytest.fixture
def page(browser: Browser, desk: DeskProcess, findings: Findings) -> Iterator[Page]:
    """A page 1280 wide in the light theme, at the desk with the handbook."""
    with looked_at(browser, desk.url, color_scheme="light") as (page, noted):
        noted.expected = findings.expected
        yield page
    assert noted.unexpected() == []


@pytest.fixture(params=THEMES)
def themed_page(browser: Browser, desk: DeskProcess, request: pytest.FixtureRequest) -> Iterator[Page]:
    """As `page`, in each theme."""
    with looked_at(browser, desk.url, color_scheme=request.param) as (page, noted):
        page.evaluate("name => { window.name = name }", request.param)
        yield page
    assert noted.unexpected() == []


def assert_accessible(page: Page) -> None:
    """Have axe look at the page as it is now."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page, where somebody wants to look at them."""
    folder = os.environ.get("REFDESK_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
