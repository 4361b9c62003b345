"""Keys and tenants in the console: the first key of a desk, one for somebody else, and that one taken back."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from tests.console.browser.conftest import assert_accessible, open_page, shoot
from tests.console.browser.desks import desk_process
from tests.console.browser.operating import click_copy

REFUSED = "status of 401"
"""What the browser itself reports of a key that is refused."""


def test_keys_are_made_used_and_revoked(browser: Browser, tmp_path: Path) -> None:
    with (
        desk_process(tmp_path, model=False) as desk,
        open_page(browser, desk.url) as (page, findings),
        open_page(browser, desk.url) as (other, others_findings),
    ):
        page.goto(f"{desk.url}/console/keys")
        _make_the_first(page)
        key = _make_one_for_bob(page)

        others_findings.expected.append(REFUSED)
        other.goto(f"{desk.url}/console/")
        other.get_by_role("button", name="Sign in").click()
        other.get_by_label("API key").fill(key)
        other.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(other.get_by_text("tenant builds · reader")).to_be_visible()
        expect(other.get_by_role("link", name="Keys")).to_have_count(0)

        _row(page, "bob-laptop").get_by_role("button", name="Revoke bob-laptop").click()
        expect(page.get_by_role("dialog")).to_contain_text("Requests of bob with this key are rejected from now on.")
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(_row(page, "bob-laptop")).to_have_count(0)
        other.get_by_role("link", name="Documents", exact=True).click()
        expect(other.get_by_role("dialog")).to_contain_text("This server requires a key")
        assert findings.list_unexpected() == others_findings.list_unexpected() == []


def _make_the_first(page: Page) -> None:
    """On a desk without keys: the page says what changes, and goes on with the new key itself."""
    expect(page.get_by_text("The first key changes permissions.")).to_be_visible()
    assert_accessible(page)
    shoot(page, "keys-none")
    page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("checkbox", name="admin All tools")).to_be_checked()
    dialog.get_by_label("Name").fill("olga")
    assert_accessible(page, "dialog")
    shoot(page, "keys-first")
    dialog.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog", name="The key olga")
    expect(shown.locator(".secret-key")).not_to_be_empty()
    shown.get_by_role("button", name="I have copied it").click()
    expect(_row(page, "olga")).to_contain_text("admin")
    expect(page.get_by_text("This tab now uses the new key.")).to_be_visible()


def _make_one_for_bob(page: Page) -> str:
    """A reader's key, taken from the clipboard as a person would."""
    page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("bob-laptop")
    dialog.get_by_role("textbox", name="User").fill("bob")
    dialog.get_by_role("textbox", name="Tenant").fill("builds")
    dialog.get_by_label("Expires").select_option("30d")
    dialog.get_by_role("checkbox", name="writer All tools").uncheck()
    dialog.get_by_role("checkbox", name="reader Read-only").check()
    dialog.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog", name="The key bob-laptop")
    expect(shown).to_contain_text("claude mcp add --transport http refdesk")
    assert_accessible(page, "dialog")
    shoot(page, "keys-shown-once")
    key = click_copy(shown.get_by_role("button", name="Copy key"))
    shown.get_by_role("button", name="I have copied it").click()
    expect(_row(page, "bob-laptop")).to_contain_text("builds")
    return key


def _row(page: Page, text: str) -> Locator:
    return page.get_by_role("region", name="Keys").get_by_role("row").filter(has_text=text)
