"""The reference pages say what the code does."""

from __future__ import annotations

import pytest

from refdesk.config.environment import ENVIRONMENT
from refdesk.config.setting_keys import SETTINGS
from reference_pages import FOLDER, PAGES, render_settings_page


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    committed = (FOLDER / f"{name}.md").read_text("utf-8")
    assert committed == PAGES[name](), "out of date; run: python scripts/reference_pages.py"


def test_no_page_is_left_over() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {*PAGES, "compatibility"}


def test_every_setting_has_a_row_and_a_sentence() -> None:
    page = render_settings_page()
    for setting in SETTINGS.values():
        assert f"| `{setting.key}` |" in page
        assert setting.description.endswith("."), setting.key


def test_every_well_known_variable_is_named_and_sets_something() -> None:
    page = render_settings_page()
    for variable in ENVIRONMENT:
        assert variable.key in SETTINGS
        assert f"`{variable.name}`" in page
