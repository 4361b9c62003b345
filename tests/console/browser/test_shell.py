"""What stands around every view: navigation, keys of the keyboard, themes, signing in, and a desk that is away."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.conftest import assert_accessible, looked_at, shoot
from tests.console.browser.desks import DeskProcess, desk_process

VIEWS = {
    "": "Search",
    "ask": "Ask",
    "documents": "Documents",
    "servers": "Servers",
    "activity": "Activity",
    "keys": "Keys",
}
KEYS = {"s": "Search", "a": "Ask", "d": "Documents", "v": "Servers", "m": "Activity", "k": "Keys"}


def heading(page: Page) -> str:
    """The one h1 of the view that is shown."""
    titles = page.locator("main h1")
    expect(titles).to_have_count(1)
    return titles.inner_text()


@pytest.mark.parametrize(("view", "title"), VIEWS.items())
def test_every_view_has_its_address_its_title_and_its_place_in_the_navigation(
    page: Page, desk: DeskProcess, view: str, title: str
) -> None:
    page.goto(f"{desk.url}/console/{view}")
    expect(page).to_have_title(f"{title} · Refdesk")
    assert heading(page).startswith(title)
    expect(page.get_by_role("navigation", name="Views").locator("[aria-current=page]")).to_have_text(title)


def test_links_change_the_view_without_loading_the_page_anew(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/")
    page.evaluate("window.stays = true")
    page.get_by_role("link", name="Ask").click()
    expect(page).to_have_title("Ask · Refdesk")
    page.go_back()
    expect(page).to_have_title("Search · Refdesk")
    assert page.evaluate("window.stays")


def test_an_address_that_leads_nowhere_says_so(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/nowhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")


def test_g_and_a_letter_go_to_each_view(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/nowhere")
    expect(page.locator("main h1")).to_be_visible()
    for letter, title in KEYS.items():
        page.locator("main").focus()
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page).to_have_title(f"{title} · Refdesk")
        page.evaluate("document.activeElement.blur()")


def test_a_question_mark_lists_the_keys_and_escape_closes_the_list(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/servers")
    expect(page).to_have_title("Servers · Refdesk")
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("Go to Documents")
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(listed).to_have_count(0)


def test_single_keys_can_be_switched_off(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/servers")
    expect(page).to_have_title("Servers · Refdesk")
    page.get_by_role("button", name="Shortcuts").click()
    page.get_by_role("switch", name="Single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page).to_have_title("Servers · Refdesk")


def test_the_skip_link_is_the_first_stop_and_leads_to_the_content(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/servers")
    expect(page).to_have_title("Servers · Refdesk")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_theme_follows_the_system_until_one_is_chosen_and_then_stays(browser: Browser, desk: DeskProcess) -> None:
    with looked_at(browser, desk.url, color_scheme="dark") as (page, findings):
        page.goto(f"{desk.url}/console/")
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Light").click()
        light = page.evaluate(ground)
        page.reload()
        expect(page.get_by_role("button", name="Dark")).to_be_visible()
        assert page.evaluate(ground) == light != dark
    assert findings.unexpected() == []


def test_on_a_narrow_screen_the_navigation_is_a_menu_and_nothing_is_wider_than_the_screen(
    browser: Browser, desk: DeskProcess
) -> None:
    narrow = {"width": 360, "height": 740}
    with looked_at(browser, desk.url, viewport=narrow, color_scheme="light") as (page, findings):
        page.goto(f"{desk.url}/console/")
        navigation = page.get_by_role("navigation", name="Views")
        expect(navigation).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        assert_accessible(page)
        shoot(page, "shell-menu-360")
        navigation.get_by_role("link", name="Ask").click()
        expect(page).to_have_title("Ask · Refdesk")
        expect(navigation).to_be_hidden()
        for view in VIEWS:
            page.goto(f"{desk.url}/console/{view}")
            expect(page.locator("main h1")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= narrow["width"], view
    assert findings.unexpected() == []


def test_a_desk_that_wants_a_key_asks_for_it_and_forgets_it_on_signing_out(browser: Browser, tmp_path: Path) -> None:
    with (
        desk_process(tmp_path, MCP_AUTH_REQUIRED="true", MCP_API_KEY="the-right-key") as desk,
        looked_at(browser, desk.url, color_scheme="light") as (page, findings),
    ):
        findings.expected = ["401"]
        page.goto(f"{desk.url}/console/")
        asked = page.get_by_role("dialog", name="This desk asks for a key")
        expect(asked).to_contain_text("refdesk keys make")
        assert_accessible(page)
        shoot(page, "shell-key-dialog")
        asked.get_by_label("API key").fill("a-wrong-key")
        asked.get_by_role("button", name="Sign in").click()
        expect(asked.get_by_role("alert")).not_to_be_empty()
        asked.get_by_label("API key").fill("the-right-key")
        page.keyboard.press("Enter")
        expect(page.locator(".caller")).to_contain_text("api-key")
        expect(page.locator(".caller")).to_contain_text("tenant default")
        assert page.evaluate("JSON.stringify({...localStorage})").count("right") == 0
        assert page.context.cookies() == []
        page.get_by_role("button", name="Sign out").click()
        expect(asked).to_be_visible()
        assert page.evaluate("JSON.stringify({...sessionStorage})").count("right") == 0
    assert findings.unexpected() == []


def free_port() -> int:
    """One that nobody listens on, for a desk that comes back where it was."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def test_a_desk_that_goes_away_is_said_to_be_and_is_found_again(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with looked_at(browser, f"http://127.0.0.1:{port}", color_scheme="light") as (page, findings):
        findings.expected = ["ERR_", "Failed to fetch"]
        with desk_process(tmp_path, port=port) as desk:
            page.goto(f"{desk.url}/console/")
            expect(page.get_by_role("heading", name="Try a question")).to_be_visible()
        page.get_by_role("searchbox", name="Query").fill("how do I require a key")
        page.keyboard.press("Enter")
        expect(page.locator(".banner")).to_contain_text("does not answer")
        shoot(page, "shell-away")
        with desk_process(tmp_path, port=port):
            expect(page.locator(".banner")).to_have_count(0, timeout=30_000)
            expect(page.locator(".result").first).to_be_visible(timeout=30_000)
    assert findings.unexpected() == []


def test_the_pages_come_with_a_policy_that_lets_nothing_else_run(desk: DeskProcess) -> None:
    with urllib.request.urlopen(f"{desk.url}/console/read", timeout=20) as response:
        policy = response.headers["content-security-policy"]
        page = response.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert " style=" not in page
    assert re.search(r"<[^>]+\son\w+=", page) is None


def test_no_script_of_the_console_makes_html_out_of_text() -> None:
    pages = Path(__file__).parents[3] / "src/refdesk/console/pages"
    scripts = list(pages.rglob("*.js"))
    assert len(scripts) > 20
    for word in (
        ".innerHTML",
        ".outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "setHTML",
    ):
        assert [path.name for path in scripts if word in path.read_text()] == [], word
