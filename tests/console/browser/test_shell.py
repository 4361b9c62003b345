"""What stands around every view: navigation, keys of the keyboard, themes, signing in, and a desk that is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.console.browser.conftest import assert_accessible, open_page, shoot
from tests.console.browser.desks import AuthDesk, DeskProcess, desk_process
from tests.console.browser.operating import assert_fits, drop, row, upload

VIEWS = {
    "": "Search",
    "ask": "Ask",
    "documents": "Documents",
    "servers": "Servers",
    "activity": "Activity",
    "keys": "Keys",
}
NARROW: ViewportSize = {"width": 360, "height": 740}
KEYS = {"s": "Search", "a": "Ask", "d": "Documents", "v": "Servers", "m": "Activity", "k": "Keys"}


def heading(page: Page) -> str:
    """The one h1 of the view that is shown."""
    titles = page.locator("main h1")
    expect(titles).to_have_count(1)
    return titles.inner_text()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_its_address_its_title_and_its_place_in_the_navigation_and_fits_a_phone(
    page: Page, desk: DeskProcess, view: str
) -> None:
    title = VIEWS[view]
    page.goto(f"{desk.url}/console/{view}")
    expect(page).to_have_title(f"{title} · Refdesk")
    assert heading(page).startswith(title)
    expect(page.get_by_role("navigation", name="Views").locator("[aria-current=page]")).to_have_text(title)
    page.set_viewport_size(NARROW)
    assert_fits(page)


def test_the_console_is_where_the_desk_says_when_it_starts(page: Page, desk: DeskProcess) -> None:
    [said] = [entry["console"] for entry in desk.log if entry["event"] == "ready"]
    page.goto(said)
    expect(page).to_have_title("Search · Refdesk")


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
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")


def test_g_and_a_letter_go_to_each_view(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/nowhere")
    expect(page.locator("main h1")).to_be_visible()
    for letter, title in KEYS.items():
        page.locator("main").focus()
        page.keyboard.type(f"g{letter}")
        expect(page).to_have_title(f"{title} · Refdesk")
        page.evaluate("document.activeElement.blur()")


def test_a_question_mark_lists_the_keys_and_escape_closes_the_list(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/servers")
    expect(page).to_have_title("Servers · Refdesk")
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("Go to Documents")
    assert_accessible(page, "dialog")
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
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_theme_follows_the_system_until_one_is_chosen_and_then_stays(page: Page, desk: DeskProcess) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{desk.url}/console/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(ground)
    page.reload()
    expect(page.get_by_role("button", name="Dark")).to_be_visible()
    assert page.evaluate(ground) == light != dark


def test_on_a_narrow_screen_the_navigation_is_a_menu(page: Page, desk: DeskProcess) -> None:
    page.set_viewport_size(NARROW)
    page.goto(f"{desk.url}/console/")
    navigation = page.get_by_role("navigation", name="Views")
    expect(navigation).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    assert_accessible(page, "header")
    shoot(page, "shell-menu-360")
    navigation.get_by_role("link", name="Ask").click()
    expect(page).to_have_title("Ask · Refdesk")
    expect(navigation).to_be_hidden()


def test_a_desk_that_wants_a_key_asks_for_it_and_forgets_it_on_signing_out(
    browser: Browser, auth_desk: AuthDesk
) -> None:
    with open_page(browser, auth_desk.desk.url, color_scheme="light") as (page, findings):
        findings.expected = ["401"]
        page.goto(f"{auth_desk.desk.url}/console/")
        asked = page.get_by_role("dialog", name="This server requires a key")
        expect(asked).to_contain_text("refdesk keys make")
        assert_accessible(page, "dialog")
        shoot(page, "shell-key-dialog")
        asked.get_by_label("API key").fill("a-wrong-key")
        asked.get_by_role("button", name="Sign in").click()
        expect(asked.get_by_role("alert")).not_to_be_empty()
        asked.get_by_label("API key").fill(auth_desk.keys["rita"])
        page.keyboard.press("Enter")
        expect(page.locator(".caller")).to_contain_text("rita")
        expect(page.locator(".caller")).to_contain_text("tenant default")
        assert auth_desk.keys["rita"] not in page.evaluate("JSON.stringify({...localStorage})")
        assert page.context.cookies() == []
        page.get_by_role("button", name="Sign out").click()
        expect(asked).to_be_visible()
        assert auth_desk.keys["rita"] not in page.evaluate("JSON.stringify({...sessionStorage})")
    assert findings.list_unexpected() == []


def test_a_desk_that_goes_away_is_said_to_be_and_all_goes_on_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with (
        desk_process(tmp_path, model=False) as desk,
        open_page(browser, desk.url, color_scheme="light") as (search, findings),
        open_page(browser, desk.url) as (documents, _),
    ):
        findings.expected = ["ERR_", "Failed to fetch"]
        search.goto(f"{desk.url}/console/")
        expect(search.get_by_role("heading", name="Try a question")).to_be_visible()
        documents.goto(f"{desk.url}/console/documents")
        expect(documents.get_by_label("to", exact=True)).to_contain_text("documents (new)")
        desk.process.kill()
        desk.process.wait()
        search.get_by_role("searchbox", name="Query").fill("how do I require a key")
        search.keyboard.press("Enter")
        expect(search.locator(".banner")).to_contain_text("is not responding")
        shoot(search, "shell-away")
        drop(documents, ("one.md", "# One\n\nText."), ("two.md", "# Two\n\nText."))
        expect(documents.get_by_text("2 files will continue when it is back")).to_be_visible()
        with desk_process(tmp_path, port=int(desk.url.rpartition(":")[2]), model=False):
            expect(search.locator(".banner")).to_have_count(0)
            expect(search.locator(".result").first).to_be_visible()
            expect(upload(documents, "one.md")).to_contain_text("Ready")
            expect(upload(documents, "two.md")).to_contain_text("Ready")
            expect(row(documents, "documents/two.md")).to_be_visible()
        assert findings.list_unexpected() == []
