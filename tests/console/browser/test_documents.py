"""Documents and collections in the console: brought in by every way, watched, mended when they fail, and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from tests.console.browser.conftest import assert_accessible, open_page, shoot
from tests.console.browser.desks import DeskProcess
from tests.console.browser.operating import EVENT_STREAM, LOOKS, Theme, assert_fits, drop, look, row, tell, upload
from tests.waiting import eventually_sync

BINARY = "\0\1\2\3"
"""No kind of document."""


@pytest.fixture
def documents(page: Page, desk: DeskProcess) -> Page:
    """The view, at a desk with one collection."""
    desk.post("/api/console/create_collection", {"name": "plant"})
    page.goto(f"{desk.url}/console/documents?collection=plant")
    expect(page.get_by_role("heading", name="plant")).to_be_visible()
    return page


@pytest.fixture
def page_with_events(browser: Browser, desk: DeskProcess) -> Iterator[Page]:
    """A page whose events come from the test; see `tell`."""
    with open_page(browser, desk.url) as (page, findings):
        page.add_init_script(EVENT_STREAM)
        yield page
    assert findings.list_unexpected() == []


def test_dropped_files_are_sent_converted_and_ready_in_the_table(documents: Page) -> None:
    drop(documents, ("pumps.md", "# Pumps\n\nA pump moves water."), ("valves.txt", "A valve holds it back."))
    expect(upload(documents, "pumps.md")).to_contain_text("Ready")
    expect(upload(documents, "valves.txt")).to_contain_text("Ready")
    expect(row(documents, "plant/pumps.md")).to_contain_text("Ready")
    row(documents, "plant/pumps.md").get_by_role("link", name="Pumps").click()
    expect(documents.get_by_text("A pump moves water.")).to_be_visible()


def test_files_dropped_while_the_collections_load_go_to_the_selected_one(page: Page, desk: DeskProcess) -> None:
    desk.post("/api/console/create_collection", {"name": "harbour"})
    held: list[Route] = []
    page.route("**/api/console/collections", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/api/console/collections"):
        page.goto(f"{desk.url}/console/documents?collection=harbour")
    drop(page, ("tides.md", "# Tides\n\nThe moon moves them."))
    held[0].continue_()
    expect(upload(page, "tides.md")).to_contain_text("Ready")
    expect(row(page, "harbour/tides.md")).to_contain_text("Ready")


def test_files_and_a_folder_can_be_chosen(documents: Page, tmp_path: Path) -> None:
    folder = tmp_path / "manuals"
    for name in ("north/README.md", "south/README.md", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n\nRead me.")
    expect(documents.get_by_text("up to 100 MB each")).to_be_visible()
    documents.get_by_label("Folder to add").set_input_files(folder)
    # Two files of the same name do not take each other's place, and what is hidden stays at home.
    expect(upload(documents, "north-README.md")).to_contain_text("Ready")
    expect(upload(documents, "south-README.md")).to_contain_text("Ready")
    expect(documents.get_by_text("1 hidden file skipped.")).to_be_visible()
    with documents.expect_file_chooser() as chooser:
        documents.get_by_role("button", name="Choose files…").click()
    (tmp_path / "single.txt").write_text("One file alone.")
    chooser.value.set_files(tmp_path / "single.txt")
    expect(upload(documents, "single.txt")).to_contain_text("Ready")


def test_the_row_of_a_document_moves_through_its_stages(page_with_events: Page, desk: DeskProcess) -> None:
    id = desk.add("Stages", "# Stages\n\nText.", "stages")
    eventually_sync(lambda: desk.is_indexed("stages"))
    ready = desk.post("/api/console/document", {"id": id})["status"]
    page_with_events.goto(f"{desk.url}/console/documents?collection=stages")
    status = row(page_with_events, id).locator(".cell-status")
    expect(status).to_have_text("Ready")
    tell(
        page_with_events, "documents", documents=[{**ready, "status": "converting", "progress": 0.1}], queue=1, total=1
    )
    expect(status).to_have_text("Converting")
    embedding = {**ready, "status": "embedding", "progress": 0.6, "chunks": 250, "embedded": 120}
    tell(page_with_events, "documents", documents=[embedding], queue=1, total=1)
    expect(status).to_have_text("Embedding120 of 250 passages")
    tell(page_with_events, "documents", documents=[ready], queue=0, total=1)
    expect(status).to_have_text("Ready")


def test_a_file_is_ready_when_its_own_version_is(page_with_events: Page, desk: DeskProcess) -> None:
    id = desk.upload("plan.md", "# Plan\n\nThe first.", "versions")
    eventually_sync(lambda: desk.is_indexed("versions"))
    first = desk.post("/api/console/document", {"id": id})["status"]
    second = {**first, "status": "embedding", "chunks": 9, "embedded": 4, "updated_at": "2100-01-01T00:00:00+00:00"}
    page_with_events.goto(f"{desk.url}/console/documents?collection=versions")
    drop(page_with_events, ("plan.md", "# Plan\n\nThe second."))
    replace = upload(page_with_events, "plan.md").get_by_role("button", name="Replace plan.md")
    expect(replace).to_be_visible()
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        route.fulfill(json={"status": first if len(asked) == 1 else second})

    page_with_events.route("**/api/console/document", answer)
    # The page may list the collection while the desk converts the second version.
    listed = desk.post("/api/console/documents", {"collection": "versions"})
    page_with_events.route("**/api/console/documents", lambda route: route.fulfill(json=listed))
    replace.click()
    expect(upload(page_with_events, "plan.md")).to_contain_text("Embedding")
    # What is told of the first version was under way when the second was taken on.
    tell(page_with_events, "documents", documents=[{**first, "title": "The first plan"}], queue=0, total=1)
    expect(row(page_with_events, id)).to_contain_text("The first plan")
    page_with_events.evaluate("() => new Promise(requestAnimationFrame)")
    assert "Ready" not in upload(page_with_events, "plan.md").inner_text()
    tell(page_with_events, "documents", documents=[{**second, "status": "success", "embedded": 9}], queue=0, total=1)
    expect(upload(page_with_events, "plan.md")).to_contain_text("Ready")


def test_a_file_that_cannot_be_converted_says_why_and_the_others_go_on(documents: Page) -> None:
    drop(documents, ("photo.bin", BINARY), ("after.md", "# After\n\nStill here."))
    expect(upload(documents, "after.md")).to_contain_text("Ready")
    failed = upload(documents, "photo.bin")
    expect(failed).to_contain_text("photo.bin is no kind of document that can be converted")
    with documents.expect_response("**/api/tools/r2r_ingest_document"):
        failed.get_by_role("button", name="Retry photo.bin").click()
    expect(failed).to_contain_text("Failed")
    shoot(documents, "documents-upload-failed")
    failed.get_by_role("button", name="Dismiss photo.bin").click()
    expect(failed).to_have_count(0)


def test_a_file_that_is_too_large_is_not_even_sent(page: Page, desk: DeskProcess) -> None:
    sent: list[Route] = []
    page.route("**/api/uploads*", lambda route: sent.append(route))
    # The desk's own limit would take 100 MB; the page goes by what it is told.
    page.route("**/api/console/me", _with_a_small_limit)
    page.goto(f"{desk.url}/console/documents?collection=plant")
    expect(page.get_by_text("up to 1.0 kB each")).to_be_visible()
    drop(page, ("large.txt", "x" * 2048))
    expect(upload(page, "large.txt")).to_contain_text("The file has 2.0 kB; the limit is 1.0 kB.")
    assert sent == []


def test_a_long_list_is_turned_page_by_page_and_read_from_its_top(page: Page, desk: DeskProcess) -> None:
    for number in range(51):
        desk.tool("r2r_ingest_document", title=f"Note {number}", text="A note.", collection_id="notes")
    page.set_viewport_size({"width": 1120, "height": 700})
    page.goto(f"{desk.url}/console/documents?collection=notes")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pages")).to_contain_text("51–51 of 51")
    heading = page.get_by_role("heading", name="notes")
    expect(heading).to_be_focused()
    expect(heading).to_be_in_viewport()
    assert page.locator(".table-frame").evaluate("frame => frame.scrollWidth <= frame.clientWidth")


def test_the_manual_is_listed_and_cannot_be_deleted(page: Page, desk: DeskProcess) -> None:
    page.goto(f"{desk.url}/console/documents?collection=refdesk")
    expect(page.get_by_role("row").filter(has_text="Require API keys")).to_contain_text("shared")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("row").get_by_role("checkbox")).to_have_count(0)


def test_a_name_that_is_taken_is_asked_about(documents: Page, desk: DeskProcess) -> None:
    desk.post("/api/console/create_collection", {"name": "clashes"})
    documents.goto(f"{desk.url}/console/documents?collection=clashes")
    expect(documents.get_by_role("heading", name="clashes")).to_be_visible()
    drop(documents, ("rules.md", "# Rules\n\nThe first."), ("rules.md", "# Rules\n\nThe second."))
    asked = upload(documents, "rules.md is already in this collection.")
    expect(asked).to_have_count(1)
    asked.get_by_role("button", name="Keep both: rules.md").click()
    expect(upload(documents, "rules-2.md")).to_contain_text("Ready")
    expect(upload(documents, "rules.md")).to_contain_text("Ready")
    documents.get_by_role("button", name="Clear finished").click()
    drop(documents, ("rules.md", "# Rules\n\nThe third."))
    upload(documents, "already in this collection").get_by_role("button", name="Replace rules.md").click()
    expect(upload(documents, "rules.md").get_by_text("Ready", exact=True)).to_be_visible()
    found = desk.post("/api/console/documents", {"collection": "clashes"})
    assert sorted(document["id"] for document in found["documents"]) == ["clashes/rules-2.md", "clashes/rules.md"]
    assert "The third." in str(desk.post("/api/console/read", {"id": "clashes/rules.md"}))


def test_a_web_page_that_may_not_be_fetched_fails_with_its_reason_and_can_be_retried(documents: Page) -> None:
    documents.get_by_role("tab", name="Web page").click()
    documents.get_by_label("URL").fill("http://127.0.0.1:9/guide.html")
    documents.get_by_role("button", name="Add page").click()
    failed = row(documents, "http://127.0.0.1:9/guide.html")
    expect(failed).to_contain_text("Failed")
    expect(failed.locator(".document-error")).to_contain_text("127.0.0.1")
    shoot(documents, "documents-url-failed")
    with documents.expect_response("**/api/console/retry"):
        failed.get_by_role("button", name="Retry").click()
    expect(failed).to_contain_text("Failed")
    expect(documents.locator("#announcer")).to_contain_text("failed")
    documents.get_by_label("Show").select_option("failed")
    expect(failed).to_be_visible()


def test_a_late_response_to_a_retry_does_not_hide_its_outcome(documents: Page) -> None:
    documents.get_by_role("tab", name="Web page").click()
    documents.get_by_label("URL").fill("http://127.0.0.1:9/late.html")
    documents.get_by_role("button", name="Add page").click()
    failed = row(documents, "http://127.0.0.1:9/late.html")
    expect(failed).to_contain_text("Failed")
    before = failed.get_by_role("time").get_attribute("datetime")
    held: list[tuple[Route, APIResponse]] = []
    documents.route("**/api/console/retry", lambda route: held.append((route, route.fetch())))
    failed.get_by_role("button", name="Retry").click()
    expect(failed.get_by_role("time")).not_to_have_attribute("datetime", str(before))
    expect(failed).to_contain_text("Failed")
    [(route, response)] = held
    with documents.expect_response("**/api/console/retry"):
        route.fulfill(response=response)
    documents.evaluate("() => new Promise(requestAnimationFrame)")
    assert "Failed" in failed.inner_text()


def test_a_text_is_added_and_deleted_again(documents: Page) -> None:
    documents.get_by_role("tab", name="Text").click()
    documents.get_by_label("Title").fill("Night shift")
    documents.get_by_role("textbox", name="Text").fill("Lock the gate.")
    documents.get_by_role("button", name="Add text").click()
    expect(row(documents, "Night shift")).to_contain_text("Ready")
    documents.get_by_label("Select Night shift").check()
    documents.get_by_text("1 document selected").locator("..").get_by_role("button", name="Delete").click()
    expect(documents.get_by_role("dialog")).to_contain_text("Delete “Night shift”?")
    documents.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row(documents, "Night shift")).to_have_count(0)


def test_a_collection_is_made_and_deleted_only_when_its_name_is_typed(documents: Page) -> None:
    documents.get_by_role("button", name="New collection").click()
    documents.get_by_label("Name").fill("Night work")
    documents.get_by_label("Version").fill("2026")
    documents.keyboard.press("Enter")
    entry = documents.get_by_role("navigation", name="Collections").get_by_role("link", name="Night work")
    expect(entry).to_have_attribute("aria-current", "true")
    drop(documents, ("shift.md", "# Shift\n\nLate."))
    expect(upload(documents, "shift.md")).to_contain_text("Ready")
    expect(entry).to_contain_text("1")
    documents.get_by_role("button", name="Delete collection").click()
    dialog = documents.get_by_role("dialog")
    expect(dialog).to_contain_text("This permanently deletes 1 document")
    expect(dialog.get_by_role("button", name="Delete collection")).to_be_disabled()
    dialog.get_by_role("textbox").fill("Night work")
    dialog.get_by_role("button", name="Delete collection").click()
    expect(entry).to_have_count(0)


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_the_view_is_accessible_and_fits(page: Page, desk: DeskProcess, theme: Theme, width: int) -> None:
    look(page, theme, width)
    desk.post("/api/console/create_collection", {"name": "looks", "description": "How it looks."})
    page.goto(f"{desk.url}/console/documents?collection=looks")
    expect(page.get_by_text("How it looks.")).to_be_visible()
    drop(page, ("photo.bin", BINARY), (f"fine-{theme}-{width}.md", "# Fine\n\nText."))
    expect(upload(page, f"fine-{theme}-{width}.md")).to_contain_text("Ready")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    shoot(page, f"documents-{theme}-{width}")


def _with_a_small_limit(route: Route) -> None:
    route.fulfill(json={**route.fetch().json(), "max_upload_bytes": 1024})
