"""What the tests of documents, servers, charts and keys share."""

from __future__ import annotations

import os
from itertools import product

from playwright.sync_api import Locator, Page

LOOKS = (
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


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def drop(page: Page, *files: tuple[str, str]) -> None:
    """Let files go above the view."""
    page.locator(".documents-view").evaluate(DROP, files)


def upload(page: Page, name: str) -> Locator:
    """The line of a file on its way."""
    return page.get_by_role("region", name="Files on their way").get_by_role("listitem").filter(has_text=name)


def row(page: Page, text: str) -> Locator:
    """The row of a document."""
    return page.get_by_role("row").filter(has_text=text)
