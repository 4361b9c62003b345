"""The charts: they draw what the desk does, and say it to those who do not see them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.conftest import assert_accessible, looked_at, shoot
from tests.console.browser.desks import DeskProcess
from tests.console.browser.operating import LOOKS, assert_fits

SAMPLE_MS = 20_000
"""A few times what passes between two samples."""

_LINE = re.compile(r"^M[\d.]+ [\d.]+")
_MEGABYTES = re.compile(r"Resident [\d,]+ MB")


@pytest.fixture
def activity(page: Page, desk: DeskProcess) -> Page:
    """The view, after some calls."""
    _search(desk, 3)
    page.goto(f"{desk.url}/console/activity")
    return page


def test_the_charts_draw_calls_as_they_are_made(activity: Page, desk: DeskProcess) -> None:
    calls = activity.get_by_role("figure", name="Calls", exact=True)
    expect(calls.locator("path.series-1")).to_have_attribute("d", _LINE, timeout=SAMPLE_MS)
    before = calls.locator("path.series-1").get_attribute("d")
    axis = calls.locator(".chart-axes text")
    expect(axis.filter(has_text="/s").first).to_be_visible()
    _search(desk, 5)
    expect(calls.locator("path.series-1")).not_to_have_attribute("d", before or "", timeout=SAMPLE_MS)
    expect(calls.locator(".chart-summary")).not_to_contain_text("Calls: highest 0 /s", timeout=SAMPLE_MS)


def test_a_chart_is_read_by_keys_and_as_a_table(activity: Page) -> None:
    memory = activity.get_by_role("figure", name="Memory")
    plot = memory.get_by_role("slider", name="Memory: moment")
    expect(plot).to_have_attribute("aria-valuetext", _MEGABYTES, timeout=SAMPLE_MS)
    plot.focus()
    activity.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "0")
    expect(memory.locator(".chart-when")).to_contain_text("at ")
    memory.get_by_text("As a table").click()
    expect(memory.get_by_role("row").nth(1)).to_contain_text("MB")


def test_the_pointer_reads_a_chart_too(activity: Page) -> None:
    memory = activity.get_by_role("figure", name="Memory")
    expect(memory.locator("path.series-1")).to_have_attribute("d", _LINE, timeout=SAMPLE_MS)
    memory.get_by_role("slider").hover()
    expect(memory.locator(".chart-when")).to_contain_text("at ")
    expect(memory.locator(".chart-cursor")).to_have_class(re.compile("is-shown"))


def test_the_table_counts_the_calls_of_each_tool(activity: Page) -> None:
    row = activity.get_by_role("region", name="Tools").get_by_role("row").filter(has_text="r2r_search")
    expect(row).to_be_visible(timeout=SAMPLE_MS)
    assert int(row.get_by_role("cell").nth(1).inner_text()) >= 3


def test_nothing_is_drawn_while_the_tab_is_hidden(activity: Page, desk: DeskProcess) -> None:
    line = activity.get_by_role("figure", name="Memory").locator("path.series-1")
    expect(line).to_have_attribute("d", _LINE, timeout=SAMPLE_MS)
    activity.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    before, known = line.get_attribute("d"), _samples(desk)
    while _samples(desk) < known + 1:
        activity.wait_for_timeout(500)
    assert line.get_attribute("d") == before
    activity.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(line).not_to_have_attribute("d", before or "")


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_the_view_is_accessible_and_fits(browser: Browser, desk: DeskProcess, theme: str, width: int) -> None:
    with looked_at(browser, desk.url, color_scheme=theme, viewport={"width": width, "height": 900}) as (page, findings):
        page.goto(f"{desk.url}/console/activity")
        expect(page.locator("path.series-1").first).to_have_attribute("d", _LINE, timeout=SAMPLE_MS)
        assert_accessible(page)
        assert_fits(page)
        shoot(page, f"activity-{theme}-{width}")
        assert findings.unexpected() == []


def _search(desk: DeskProcess, times: int) -> None:
    for number in range(times):
        desk.tool("r2r_search", query=f"roll back a release {number}")


def _samples(desk: DeskProcess) -> int:
    return len(desk.post("/api/console/metrics", {})["samples"])
