"""What the tests of documents, servers, charts and keys share."""

from __future__ import annotations

import os
from itertools import product

from playwright.sync_api import Page

LOOKS = (
    list(product(("light", "dark"), (1280, 390)))
    if os.environ.get("REFDESK_SCREENSHOTS")
    else [("light", 1280), ("dark", 390)]
)
"""Theme and width. Where somebody wants pictures every pair; otherwise each theme and each width once."""

NO_MODEL = "none"
"""Where a desk has its model that has nothing to embed, and so more time for what is looked at."""


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
