"""What the tests of documents, servers, charts and keys share."""

from __future__ import annotations

import os
from itertools import product
from typing import Any, Literal

from playwright.sync_api import Locator, Page

Theme = Literal["light", "dark"]

LOOKS: list[tuple[Theme, int]] = (
    list(product(("light", "dark"), (1280, 390)))
    if os.environ.get("REFDESK_SCREENSHOTS")
    else [("light", 1280), ("dark", 390)]
)
"""Theme and width. Where somebody wants pictures every pair; otherwise each theme and each width once."""

DROP = """(view, files) => {
    const data = new DataTransfer();
    for (const [name, text] of files) data.items.add(new File([text], name));
    for (const type of ["dragenter", "dragover", "drop"])
        view.dispatchEvent(new DragEvent(type, {bubbles: true, cancelable: true, dataTransfer: data}));
}"""
"""What a browser does when somebody lets files go above the page."""


NOTE_COPIED = """() => {
    window.saidCopied = false;
    const look = () => (window.saidCopied ||= document.body.textContent.includes("Copied"));
    new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""

EVENT_STREAM = r"""(() => {
    const fetch = window.fetch;
    const encoder = new TextEncoder();
    window.fetch = async (address, options) => {
        if (!String(address).endsWith("/api/console/events")) return fetch(address, options);
        const start = (controller) => {
            window.tell = (name, data) =>
                controller.enqueue(encoder.encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`));
        };
        return new Response(new ReadableStream({start}));
    };
})()"""
"""An init script that replaces the desk's stream of events by one that `tell` writes."""


def tell(page: Page, event: str, **data: Any) -> None:
    """Send the page an event; it needs the EVENT_STREAM."""
    page.wait_for_function("Boolean(window.tell)")
    page.evaluate("([event, data]) => window.tell(event, data)", [event, data])


def click_copy(button: Locator) -> str:
    """Press a copy button, wait until the page has said "Copied" for a moment, and read the clipboard."""
    page = button.page
    page.evaluate(NOTE_COPIED)
    button.click()
    page.wait_for_function("window.saidCopied")
    return str(page.evaluate("navigator.clipboard.readText()"))


def look(page: Page, theme: Theme, width: int) -> None:
    """Have the page in a theme and a width."""
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def drop(page: Page, *files: tuple[str, str]) -> None:
    """Let files go above the view."""
    page.locator(".documents-view").evaluate(DROP, files)


def upload(page: Page, name: str) -> Locator:
    """The line of a file on its way."""
    return page.get_by_role("region", name="Uploads").get_by_role("listitem").filter(has_text=name)


def row(page: Page, text: str) -> Locator:
    """The row of a document."""
    return page.get_by_role("row").filter(has_text=text)
