"""A real desk, and Chromium to look at it with.

    def test_something(page: Page, desk: DeskProcess) -> None:
        page.goto(f"{desk.url}/console/")

`page` fails its test when the page reports an error, breaks its own content policy or asks another host for anything.
Set REFDESK_SCREENSHOTS to a folder to keep what `shoot` sees.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Playwright,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.console.browser.desks import HANDBOOK, AuthDesk, DeskProcess, desk_process, run_auth_desk
from tests.waiting import PATIENCE_SECONDS, eventually_sync

HERE = Path(__file__).parent
DOWNLOADS = HERE.parents[2] / ".cache/playwright"
PLAYWRIGHT = (sys.executable, "-m", "playwright")
"""Folder of Playwright's own browsers, unless PLAYWRIGHT_BROWSERS_PATH names another."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
"""Program names of Chromium and of browsers built from it."""

MISSING = "no Chromium on the PATH or in .cache/playwright (package chromium)"
UNUSABLE = "Chromium is installed but cannot start (missing libraries or permissions)"
NO_DRIVER = "Playwright's driver cannot start (on Debian: package libatomic1)"

THEMES = ("light", "dark")
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}

PATIENCE_MS = 1000 * PATIENCE_SECONDS

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
        for event, note in self._notes().items():
            page.on(event, note)  # type: ignore[call-overload]  # which wants each name as a literal

    def forget(self, page: Page) -> None:
        """Note nothing more of a page."""
        for event, note in self._notes().items():
            page.remove_listener(event, note)

    def list_unexpected(self) -> list[str]:
        """Problems that no test asked for."""
        return [problem for problem in self.problems if not any(part in problem for part in self.expected)]

    def _notes(self) -> dict[str, Callable[[Any], None]]:
        notes = {"console": self._console, "pageerror": self._error, "dialog": self._dialog, "request": self._request}
        return notes  # type: ignore[return-value]  # each takes what its event brings

    def _error(self, error: Error) -> None:
        self.problems.append(f"error: {error}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.host, "data:", "blob:")):
            self.problems.append(f"request: {request.url}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of this folder, before `-m` selects by marker."""
    item.add_marker(pytest.mark.browser)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of this folder together after all others, so that they share one browser."""
    items.sort(key=lambda item: item.path.is_relative_to(HERE))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. Of this folder and no wider: while it is open no other test can run a loop of its own."""
    if subprocess.run([*PLAYWRIGHT, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(NO_DRIVER)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PLAYWRIGHT_BROWSERS_PATH", os.environ.get("PLAYWRIGHT_BROWSERS_PATH", str(DOWNLOADS)))
        with sync_playwright() as playwright:
            browser = launch(playwright)
            if isinstance(browser, Browser):
                yield browser
                browser.close()
    if not isinstance(browser, Browser):
        pytest.skip(browser)


def launch(playwright: Playwright) -> Browser | str:
    """Start Chromium and open a page in it, or return the reason why that is impossible here."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None and Path(playwright.chromium.executable_path).exists():
        path = playwright.chromium.executable_path
    try:
        # A container has one user, under whom Chromium's own sandbox does not work.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        browser.new_page().close()
    except Error as error:
        return MISSING if path is None and "Executable doesn't exist" in error.message else UNUSABLE
    return browser


@pytest.fixture(scope="package")
def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeskProcess]:
    """A desk with its manual and a handbook of a team. Tests leave both as they are; what they add goes elsewhere."""
    with desk_process(tmp_path_factory.mktemp("desk")) as desk:
        desk.add("Deploy handbook", HANDBOOK, "handbook", team="release")
        eventually_sync(lambda: desk.is_indexed("handbook"))
        yield desk


@pytest.fixture(scope="package")
def auth_desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthDesk]:
    """A desk that wants a key, with a document of the default tenant."""
    with run_auth_desk(tmp_path_factory.mktemp("keyed")) as auth_desk:
        auth_desk.desk.add("House rules", "Shut the door.", "rules")
        yield auth_desk


@contextmanager
def open_page(browser: Browser, host: str, **options: Any) -> Iterator[tuple[Page, Findings]]:
    """Open a page in a browser profile of its own, and note what goes wrong in it."""
    context = browser.new_context(**{"viewport": VIEWPORT, **options})
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, findings = context.new_page(), Findings(host)
    findings.watch(page)
    try:
        yield page, findings
    finally:
        context.close()


@pytest.fixture(scope="package")
def base_page(browser: Browser) -> Iterator[Page]:
    """The page behind `page`: opening a new one takes longer than most tests."""
    with open_page(browser, "") as (page, findings):
        findings.forget(page)
        yield page


@pytest.fixture
def findings(desk: DeskProcess) -> Findings:
    """Of the test's `page`; a test that makes something fail adds what it expects."""
    return Findings(desk.url)


@pytest.fixture
def page(base_page: Page, findings: Findings) -> Iterator[Page]:
    """A page 1280 wide in the light theme, at the desk with the handbook, with nothing left of earlier tests."""
    base_page.emulate_media(color_scheme="light")
    base_page.set_viewport_size(VIEWPORT)
    findings.watch(base_page)
    yield base_page
    findings.forget(base_page)
    clear(base_page)
    assert findings.list_unexpected() == []


@pytest.fixture(params=THEMES)
def page_in_theme(page: Page, request: pytest.FixtureRequest) -> Page:
    """As `page`, in each theme."""
    page.emulate_media(color_scheme=request.param)
    page.evaluate("name => { window.name = name }", request.param)
    return page


def clear(page: Page) -> None:
    """Leave the console, with whatever it keeps in the browser."""
    page.unroute_all(behavior="ignoreErrors")
    if not page.url.startswith("about:"):
        page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.on("dialog", Dialog.accept)  # after a failed test, the page may ask whether to leave files unsent
    page.goto("about:blank")
    page.remove_listener("dialog", Dialog.accept)


def assert_accessible(page: Page, within: str | None = None) -> None:
    """Check the page as it is now with axe, or only what a selector names: a whole page takes a second or two."""
    found = Axe().run(page, context=within)
    assert found.violations_count == 0, found.generate_report()


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page, where somebody wants to look at them."""
    folder = os.environ.get("REFDESK_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
