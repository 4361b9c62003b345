"""The search playground, as somebody uses it who has never seen it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.browser.conftest import Findings, assert_accessible, shoot
from tests.console.browser.desks import DeskProcess
from tests.console.browser.operating import click_copy
from tests.programs import find_program
from tests.waiting import PATIENCE_SECONDS

NOTE_RESULTS = """() => {
    window.noted = [];
    const found = document.querySelector(".found");
    new MutationObserver(() => window.noted.push(found.innerText)).observe(found, {childList: true, subtree: true});
}"""
"""Keep every list of results that the page shows from now on."""

AWKWARD = """it's a "quoted" $HOME `id` \\ back & <b>roll</b> back"""
"""A query with all that a shell, JSON or HTML could stumble over."""


def search(page: Page, desk: DeskProcess, query: str) -> None:
    """Open the page and send a query."""
    page.goto(f"{desk.url}/console/")
    page.get_by_role("searchbox", name="Query").fill(query)
    page.keyboard.press("Enter")
    await_answer(page)
    expect(page.locator(".result-count")).to_contain_text("passage")


def await_answer(page: Page) -> None:
    """Wait until no search is under way: the console also searches by itself while a query is typed."""
    expect(page.locator(".found")).not_to_have_attribute("aria-busy", "true")


def expect_result(page: Page, text: str) -> None:
    """Wait for a result with this text. Its rank depends on what other tests have added."""
    expect(page.locator(".result").filter(has_text=text).first).to_be_visible()


def call_as(page: Page, tab: str) -> str:
    """The call as the panel shows it."""
    panel = page.get_by_role("region", name="The call")
    panel.get_by_role("tab", name=tab).click()
    return str(panel.get_by_role("tabpanel").locator("code").text_content())


def test_a_newcomer_gets_a_first_answer_with_one_click(page_in_theme: Page, desk: DeskProcess) -> None:
    page, theme = page_in_theme, page_in_theme.evaluate("window.name")
    page.goto(f"{desk.url}/console/")
    expect(page.get_by_role("searchbox", name="Query")).to_be_focused()
    expect(page.get_by_role("heading", name="Try a question")).to_be_visible()
    assert_accessible(page, ".found")
    shoot(page, f"search-first-{theme}")
    page.get_by_role("button", name="How do I require an API key?").first.click()
    expect(page.locator(".result").first).to_contain_text("Require API keys")
    assert_accessible(page)
    shoot(page, f"search-results-{theme}")


@pytest.mark.parametrize("question", ["How do I connect Claude Code?", "Which kinds of files can be converted?"])
def test_the_manual_answers_the_other_questions_as_well(page: Page, desk: DeskProcess, question: str) -> None:
    page.goto(f"{desk.url}/console/")
    page.get_by_role("button", name=question).first.click()
    expect(page.locator(".result").first).to_contain_text("refdesk/")
    score = page.locator(".result .score").first.inner_text()
    assert float(score) > 0.3


def test_a_result_says_where_it_is_from_and_marks_the_words_in_any_form(page: Page, desk: DeskProcess) -> None:
    search(page, desk, "rolling back releases")
    hit = page.locator(".result").filter(has_text="Deploy handbook › Roll back a release").first
    expect(hit.locator("mark").filter(has_text="release").first).to_be_visible()
    expect(hit.locator("footer")).to_contain_text("indexed")
    expect(hit.locator(".score")).to_contain_text("0.")
    expect(page.locator(".result-count")).to_contain_text("tokens")


def test_a_heading_that_is_the_title_once_more_is_not_said_twice(page: Page, desk: DeskProcess) -> None:
    desk.add("Vacation", "# Vacation\n\nEverybody has thirty days of vacation.", "once")
    search(page, desk, "how many days of vacation has everybody")
    hit = page.locator(".result").filter(has_text="thirty days").first
    expect(hit.get_by_role("heading")).to_have_text("Vacation")


def test_results_come_while_one_types(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/")
    page.get_by_role("searchbox", name="Query").press_sequentially("rotate the signing keys", delay=5)
    expect_result(page, "Rotate the signing keys")


def test_stale_response_is_discarded(page: Page, desk: DeskProcess) -> None:
    late = desk.post("/api/tools/r2r_search", {"query": "rotate the signing keys"})
    late["structuredContent"]["results"][0]["text"] = "A stale passage."
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "rotate" in str(route.request.post_data):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/tools/r2r_search", hold)
    page.goto(f"{desk.url}/console/")
    field = page.get_by_role("searchbox", name="Query")
    field.fill("rotate the signing keys")
    with page.expect_request("**/api/tools/r2r_search"):
        page.keyboard.press("Enter")
    expect(page.locator(".found")).to_have_attribute("aria-busy", "true")
    expect(page.get_by_text("Searching")).to_be_visible()
    field.fill("minutes for a rollback")
    page.keyboard.press("Enter")
    expect_result(page, "Minutes for a rollback")
    page.evaluate(NOTE_RESULTS)
    # One of them, or two where the page had the time to search before the Enter key.
    assert held
    for route in held:
        route.fulfill(json=late)
    # The answer to a third search comes after the stale ones.
    field.fill("tell the channel")
    with page.expect_response(lambda response: "tell the channel" in str(response.request.post_data)):
        page.keyboard.press("Enter")
    page.wait_for_function("window.noted.length > 0")
    await_answer(page)
    noted = page.evaluate("window.noted")
    assert "A stale passage." not in "".join(noted)


def test_a_search_can_be_shared_by_its_address(page: Page, desk: DeskProcess) -> None:
    search(page, desk, "rollback")
    page.get_by_label("Collection").select_option("handbook")
    page.get_by_label("Mode").select_option("words")
    page.get_by_label("Results").fill("3")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{desk.url}/console/?q=rollback&collection=handbook&mode=words&limit=3")
    await_answer(page)
    sent = json.loads(call_as(page, "JSON"))["arguments"]
    page.goto(page.url)
    expect(page.locator(".result").first).to_be_visible()
    assert json.loads(call_as(page, "JSON"))["arguments"] == sent
    assert sent == {
        "query": "rollback", "search_mode": "custom", "settings": {"mode": "fulltext"}, "collection_id": "handbook",
        "limit": 3,
    }  # fmt: skip


def test_collections_are_listed_with_how_many_documents_they_hold(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/")
    expect(page.get_by_label("Collection").locator("option", has_text="handbook (1)")).to_have_count(1)


def test_conditions_become_filters_and_nested_ones_are_written_as_json(page: Page, desk: DeskProcess) -> None:
    search(page, desk, "keys")
    page.get_by_text("Filters", exact=True).click()
    page.get_by_role("button", name="Add a condition").click()
    page.get_by_label("Field").fill("metadata.team")
    page.get_by_role("textbox", name="Value").fill("release")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(re.escape("metadata.team")))
    await_answer(page)
    assert json.loads(call_as(page, "JSON"))["arguments"]["filters"] == {"metadata.team": "release"}
    expect(page.locator(".result").first).to_contain_text("Deploy handbook")
    page.get_by_role("button", name="Edit as JSON").click()
    source = page.get_by_label("Filters as JSON")
    source.fill('{"$or": [')
    source.blur()
    expect(page.locator(".field-error")).to_contain_text("Invalid JSON")
    expect(source).to_have_attribute("aria-invalid", "true")
    assert_accessible(page, ".search-form")
    shoot(page, "search-filters")
    source.fill('{"$or": [{"metadata.team": "release"}, {"version": "9"}]}')
    source.blur()
    expect(page.locator(".field-error")).to_be_hidden()
    expect(page).to_have_url(re.compile(re.escape("%24or")))


def test_what_the_desk_refuses_is_said_in_its_words(page: Page, desk: DeskProcess, findings: Findings) -> None:
    findings.expected.append("400")
    page.goto(f"{desk.url}/console/?q=keys&filters=%7B%22version%22%3A%7B%22%24near%22%3A1%7D%7D")
    expect(page.get_by_role("alert").first).to_contain_text("$near")


def test_nothing_found_says_what_to_try(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/?q=keys&filters=%7B%22title%22%3A%22no+such+title%22%7D")
    expect(page.get_by_role("heading", name="No results")).to_be_visible()


def test_arrows_and_letters_go_through_the_results_and_enter_opens_one(page: Page, desk: DeskProcess) -> None:
    search(page, desk, "How do I require an API key?")
    links = page.locator("[data-result]")
    page.keyboard.press("ArrowDown")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox", name="Query")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".reader-text .hit").first).to_be_in_viewport()


def test_the_curl_command_that_is_shown_gives_what_the_console_got(page: Page, desk: DeskProcess) -> None:
    find_program("curl")
    search(page, desk, AWKWARD)
    command = call_as(page, "curl")
    ran = subprocess.run(["sh", "-c", command], capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    assert json.loads(ran.stdout)["structuredContent"]["results"]
    raw = json.loads(call_as(page, "Raw response"))
    assert json.loads(ran.stdout)["structuredContent"]["results"] == raw["structuredContent"]["results"]


def test_the_python_program_that_is_shown_runs(page: Page, desk: DeskProcess, tmp_path: Path) -> None:
    search(page, desk, AWKWARD)
    program = tmp_path / "call.py"
    program.write_text(call_as(page, "Python"))
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, timeout=PATIENCE_SECONDS, check=True, text=True
    )
    assert "### 1." in ran.stdout


def test_the_call_names_the_key_and_never_holds_it(page: Page, desk: DeskProcess) -> None:
    find_program("curl")
    page.goto(f"{desk.url}/console/")
    page.evaluate("sessionStorage.setItem('refdesk.key', 'rd_very_secret')")
    search(page, desk, "rollback")
    shown = [call_as(page, tab) for tab in ("curl", "JSON", "Python", "Raw response")]
    assert "$REFDESK_KEY" in shown[0]
    assert "REFDESK_KEY" in shown[2]
    assert "rd_very_secret" not in "".join(shown)
    environment = {**os.environ, "REFDESK_KEY": "none"}
    ran = subprocess.run(
        ["sh", "-c", shown[0]], capture_output=True, timeout=PATIENCE_SECONDS, check=True, env=environment
    )
    assert json.loads(ran.stdout)["structuredContent"]["results"]


def test_the_copy_button_copies_what_is_shown(page: Page, desk: DeskProcess) -> None:
    search(page, desk, "rollback")
    shown = call_as(page, "curl")
    assert click_copy(page.get_by_role("region", name="The call").get_by_role("button", name="Copy")) == shown


def test_past_searches_can_be_repeated(page: Page, desk: DeskProcess) -> None:
    desk.tool("r2r_search", query="who may rotate the keys")
    page.goto(f"{desk.url}/console/")
    page.get_by_role("button", name="who may rotate the keys").click()
    expect_result(page, "captain")


def test_the_call_is_one_column_below_the_results_on_a_phone(page: Page, desk: DeskProcess) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    search(page, desk, "rotate the signing keys")
    results, panel = page.locator(".results").bounding_box(), page.locator(".call").bounding_box()
    assert results
    assert panel
    assert panel["y"] > results["y"] + results["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "search-390")
