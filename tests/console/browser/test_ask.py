"""Ask: an answer, its citations, and a plain word where there is none."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from tests.console.browser.conftest import assert_accessible, shoot
from tests.console.browser.desks import DeskProcess


def ask(page: Page, desk: DeskProcess, question: str) -> None:
    page.goto(f"{desk.url}/console/ask")
    page.get_by_label("Question").fill(question)
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Answer")).to_be_visible()


def test_an_answer_cites_its_sources_and_says_that_it_is_quoted(page_in_theme: Page, desk: DeskProcess) -> None:
    page, theme = page_in_theme, page_in_theme.evaluate("window.name")
    ask(page, desk, "How often are the signing keys rotated?")
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("ninety days")
    expect(answer).to_contain_text("Quoted from the documents")
    expect(answer.locator(".citation").first).to_be_visible()
    assert_accessible(page)
    shoot(page, f"ask-{theme}")


def test_a_citation_lights_up_its_source_and_opens_it_in_the_reader(page: Page, desk: DeskProcess) -> None:
    ask(page, desk, "How often are the signing keys rotated?")
    citation = page.locator(".citation").first
    number = citation.get_attribute("data-citation")
    citation.hover()
    expect(page.locator(f'[data-source="{number}"]')).to_have_class("source-item is-cited")
    assert_accessible(page, ".is-cited")
    page.mouse.move(0, 0)
    expect(page.locator(".is-cited")).to_have_count(0)
    citation.click()
    expect(page.locator(".reader-text .hit").first).to_be_in_viewport()
    expect(page.locator(".reader-text .hit")).to_contain_text(["ninety days"])


def test_what_the_documents_do_not_hold_is_said_plainly(page: Page, desk: DeskProcess) -> None:
    ask(page, desk, "Who won the football world cup in 1998?")
    expect(page.get_by_role("heading", name="No answer found in your documents")).to_be_visible()
    expect(page.get_by_role("heading", name="Closest passages")).to_be_visible()
    assert_accessible(page)
    shoot(page, "ask-none")


def test_a_question_can_be_shared_and_keeps_to_its_collection(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/ask?q=How+long+does+a+rollback+take%3F&collection=handbook")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("two minutes")
    panel = page.get_by_role("region", name="The call")
    panel.get_by_role("tab", name="JSON").click()
    sent = json.loads(str(panel.get_by_role("tabpanel").locator("code").text_content()))
    assert sent == {
        "name": "r2r_rag_query",
        "arguments": {"question": "How long does a rollback take?", "collection_id": "handbook"},
    }
    sources = page.locator(".source-facts").all_inner_texts()
    assert sources
    assert all("handbook/" in source for source in sources)


def test_it_fits_a_phone(page: Page, desk: DeskProcess) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ask(page, desk, "How long does a rollback take?")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "ask-390")
