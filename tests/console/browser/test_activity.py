"""The charts: they draw what the desk does, and say it to those who do not see them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.conftest import assert_accessible, open_page, shoot
from tests.console.browser.desks import DeskProcess
from tests.console.browser.operating import EVENT_STREAM, LOOKS, Theme, assert_fits, look, tell
from tests.waiting import eventually_sync

HIDE = """() => {
    window.asked = 0;
    Object.defineProperty(document, "hidden", {get: () => ((window.asked += 1), true), configurable: true});
}"""
"""Have the page take its tab for hidden, and count how often it asks."""

_LINE = re.compile(r"^M[\d.]+ [\d.]+")
_MEGABYTES = re.compile(r"Resident [\d,]+ MB")


@pytest.fixture(scope="module")
def desk_with_searches(desk: DeskProcess) -> DeskProcess:
    """The desk, once its samples tell of some searches."""
    _search(desk, 3)
    eventually_sync(lambda: _searches(desk) >= 3)
    return desk


@pytest.fixture
def activity(page: Page, desk_with_searches: DeskProcess) -> Page:
    """The view, after some calls."""
    page.goto(f"{desk_with_searches.url}/console/activity")
    return page


def test_the_charts_draw_calls_as_they_are_made(activity: Page, desk: DeskProcess) -> None:
    calls = activity.get_by_role("figure", name="Calls", exact=True)
    expect(calls.locator("path.series-1")).to_have_attribute("d", _LINE)
    before = calls.locator("path.series-1").get_attribute("d")
    axis = calls.locator(".chart-axes text")
    expect(axis.filter(has_text="/s").first).to_be_visible()
    _search(desk, 5)
    expect(calls.locator("path.series-1")).not_to_have_attribute("d", before or "")
    expect(calls.locator(".chart-summary")).not_to_contain_text("Calls: highest 0 /s")


def test_a_chart_is_read_by_keys_and_as_a_table(activity: Page) -> None:
    memory = activity.get_by_role("figure", name="Memory")
    plot = memory.get_by_role("slider", name="Memory: moment")
    expect(plot).to_have_attribute("aria-valuetext", _MEGABYTES)
    plot.focus()
    activity.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "0")
    expect(memory.locator(".chart-when")).to_contain_text("at ")
    memory.get_by_text("Show as table").click()
    expect(memory.get_by_role("row").nth(1)).to_contain_text("MB")


def test_the_pointer_reads_a_chart_too(activity: Page) -> None:
    memory = activity.get_by_role("figure", name="Memory")
    expect(memory.locator("path.series-1")).to_have_attribute("d", _LINE)
    memory.get_by_role("slider").hover()
    expect(memory.locator(".chart-when")).to_contain_text("at ")
    expect(memory.locator(".chart-cursor")).to_have_class(re.compile("is-shown"))


def test_the_table_counts_the_calls_of_each_tool(activity: Page) -> None:
    row = activity.get_by_role("region", name="Tools").get_by_role("row").filter(has_text="r2r_search")
    expect(row).to_be_visible()
    assert int(row.get_by_role("cell").nth(1).inner_text()) >= 3


def test_nothing_is_drawn_while_the_tab_is_hidden(browser: Browser, desk_with_searches: DeskProcess) -> None:
    last = desk_with_searches.post("/api/console/metrics", {})["samples"][-1]
    with open_page(browser, desk_with_searches.url) as (page, findings):
        page.add_init_script(EVENT_STREAM)
        page.goto(f"{desk_with_searches.url}/console/activity")
        line = page.get_by_role("figure", name="Memory").locator("path.series-1")
        expect(line).to_have_attribute("d", _LINE)
        page.evaluate(HIDE)
        before = line.get_attribute("d")
        tell(page, "metrics", sample={**last, "at": last["at"] + 60, "rss_mb": 2 * last["rss_mb"]})
        page.wait_for_function("window.asked > 0")
        assert line.get_attribute("d") == before
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        expect(line).not_to_have_attribute("d", before or "")
    assert findings.list_unexpected() == []


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_the_view_is_accessible_and_fits(activity: Page, theme: Theme, width: int) -> None:
    look(activity, theme, width)
    expect(activity.locator("path.series-1").first).to_have_attribute("d", _LINE)
    assert_accessible(activity)
    assert_fits(activity)
    shoot(activity, f"activity-{theme}-{width}")


def _search(desk: DeskProcess, times: int) -> None:
    for number in range(times):
        desk.tool("r2r_search", query=f"roll back a release {number}")


def _searches(desk: DeskProcess) -> int:
    """How many searches the samples tell of."""
    tools = {tool["name"]: tool["calls"] for tool in desk.post("/api/console/metrics", {})["tools"]}
    return int(tools.get("r2r_search", 0))
