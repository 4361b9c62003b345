"""The reader: a document's text, its outline, and the way from a passage to what is around it."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser.conftest import Findings, assert_accessible, shoot
from tests.console.browser.desks import DeskProcess
from tests.console.browser.operating import click_copy

LONG = "# Log book\n\n" + "\n\n".join(
    f"## Day {day}\n\nOn day {day} the lamp was lit {day} times." for day in range(1, 301)
)
"""More than one answer of the desk holds."""


@pytest.fixture(scope="module")
def handbook(desk: DeskProcess) -> str:
    return str(
        desk.tool("r2r_search", query="roll back a release", collection_id="handbook")["results"][0]["document_id"]
    )


@pytest.fixture(scope="module")
def log_book(desk: DeskProcess) -> str:
    return desk.add("Log book", LONG, "logs")


def address(desk: DeskProcess, id: str, place: str = "") -> str:
    return f"{desk.url}/console/read?id={quote(id, safe='')}{place}"


def test_every_kind_of_block_is_drawn(page_in_theme: Page, desk: DeskProcess, handbook: str) -> None:
    page, theme = page_in_theme, page_in_theme.evaluate("window.name")
    page.goto(address(desk, handbook))
    text = page.locator(".reader-text")
    expect(text.get_by_role("heading", name="Roll back a release")).to_be_visible()
    expect(text.locator("code", has_text="deploy rollback v41")).to_be_visible()
    expect(text.locator("strong")).to_have_text("green light")
    expect(text.get_by_role("listitem")).to_have_text(["Tell the channel first.", "Then run the command."])
    expect(text.get_by_role("columnheader")).to_have_text(["Limit", "Value"])
    expect(page.locator("h1")).to_have_text("Deploy handbook")
    assert_accessible(page)
    shoot(page, f"reader-{theme}")


def test_the_title_stands_once_and_is_a_place_to_go_to(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook, "&section=limits"))
    page.get_by_role("button", name="More before").click()
    expect(page.get_by_role("heading", name="Roll back a release")).to_be_visible()
    expect(page.get_by_role("heading", name="Deploy handbook")).to_have_count(1)
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Deploy handbook").click()
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def test_links_lead_to_other_documents_of_the_collection_and_to_no_others(page: Page, desk: DeskProcess) -> None:
    there = desk.add("Guide", "# Guide\n\n## First steps\n\nGo.", "links")
    name = there.removeprefix("links/")
    linked = f"See [the guide]({name}#first-steps), [nothing](gone.md) and [another](../handbook/deploy-handbook)."
    page.goto(address(desk, desk.add("Linked", linked, "links")))
    text = page.locator(".reader-text")
    expect(text.get_by_role("link")).to_have_text(["the guide"])
    text.get_by_role("link", name="the guide").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Guide")
    expect(page).to_have_url(address(desk, there, "&section=first-steps"))


def test_text_from_right_to_left_reads_so(page: Page, desk: DeskProcess) -> None:
    page.goto(address(desk, desk.add("Rtl", "عودة سريعة.\n\n- أولا\n- ثانيا", "directions")))
    text = page.locator(".reader-text")
    expect(text.locator("ul")).to_have_css("direction", "rtl")
    expect(text.locator("p")).to_have_css("direction", "rtl")


def test_the_outline_leads_to_a_section_and_marks_it(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook))
    outline = page.get_by_role("navigation", name="Contents")
    outline.get_by_role("link", name="Limits").click()
    expect(outline.locator("[aria-current]")).to_have_text("Limits")
    expect(page).to_have_url(re.compile(re.escape("section=")))
    expect(page.locator(".reader-text").get_by_role("heading", name="Limits")).to_be_focused()


def test_branches_of_the_outline_fold(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook))
    outline = page.get_by_role("navigation", name="Contents")
    leaf = outline.get_by_role("link", name="Who may rotate")
    expect(leaf).to_be_hidden()
    outline.get_by_role("button", name="Sections of Rotate the signing keys").click()
    expect(leaf).to_be_visible()


def test_the_way_goes_on_to_the_next_section_and_back(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook))
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Roll back a release").click()
    steps = page.get_by_role("navigation", name="Sections before and after")
    steps.get_by_role("link", name="Rotate the signing keys").click()
    expect(steps.get_by_role("link", name="Roll back a release")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(re.escape("section=roll-back")))


def test_a_passage_is_highlighted_and_read_with_more_around_it(page: Page, desk: DeskProcess, log_book: str) -> None:
    hit = desk.tool("r2r_search", query="day 150 lamp", collection_id="logs", limit=1)["results"][0]
    page.goto(address(desk, log_book, f"&chunk={quote(hit['chunk_id'], safe='')}&q=lamp"))
    expect(page.locator(".reader-text .hit").first).to_be_in_viewport()
    expect(page.locator(".reader-text .hit mark").first).to_have_text("lamp")
    blocks = page.locator(".reader-text > *")
    few = blocks.count()
    page.get_by_role("button", name="More before").click()
    expect(page).to_have_url(re.compile(re.escape("before=5")))
    assert blocks.count() > few
    expect(page.locator(".reader-text .hit").first).to_be_in_viewport()
    shoot(page, "reader-passage")


def test_a_long_document_is_read_on_to_its_end(page: Page, desk: DeskProcess, log_book: str) -> None:
    page.goto(address(desk, log_book))
    more = page.get_by_role("button", name="More after")
    expect(more).to_be_visible()
    for _ in range(5):
        if more.count() == 0:
            break
        before = page.locator(".reader-text > *").count()
        more.click()
        page.wait_for_function("count => document.querySelectorAll('.reader-text > *').length > count", arg=before)
    expect(page.locator(".reader-text")).to_contain_text("On day 300 the lamp was lit 300 times.")
    days = page.locator(".reader-text h2").all_inner_texts()
    assert days == [f"Day {day}" for day in range(1, 301)]


def test_finding_within_the_document_leads_to_the_passage(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook))
    page.get_by_label("Find in this document").fill("captain")
    page.keyboard.press("Enter")
    page.locator(".find-hit").first.click()
    expect(page.locator(".reader-text .hit mark", has_text="captain").first).to_be_visible()


def test_what_is_known_of_the_document_stands_beside_it(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.goto(address(desk, handbook))
    about = page.locator(".about")
    for fact in ("handbook", "team", "release", "Indexed"):
        expect(about).to_contain_text(fact)
    assert click_copy(about.get_by_role("button", name="Copy")) == handbook


def test_a_citation_names_the_passage_that_is_open(page: Page, desk: DeskProcess, handbook: str) -> None:
    hit = desk.tool("r2r_search", query="who rotates", collection_id="handbook", limit=1)["results"][0]
    page.goto(address(desk, handbook, f"&chunk={quote(hit['chunk_id'], safe='')}"))
    assert click_copy(page.get_by_role("button", name="Copy citation")) == hit["chunk_id"]


def test_a_document_that_is_not_there_is_said_to_be_so(page: Page, desk: DeskProcess, findings: Findings) -> None:
    findings.expected.append("404")
    page.goto(address(desk, "handbook/gone"))
    expect(page.get_by_role("alert")).to_contain_text("handbook/gone")


def test_without_a_document_the_reader_says_where_to_find_one(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/read")
    expect(page.get_by_role("heading", name="No document is open")).to_be_visible()


def test_on_a_phone_the_outline_is_folded_above_the_text(page: Page, desk: DeskProcess, handbook: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address(desk, handbook))
    expect(page.locator(".reader-text h2").first).to_be_visible()
    expect(page.get_by_role("navigation", name="Contents")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "reader-390")
