"""The page of settings says what the code does."""

from __future__ import annotations

from pathlib import Path

from refdesk.cli.reference import settings_page
from refdesk.config import ENVIRONMENT, SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text("utf-8") == settings_page(), (
        "docs/reference/settings.md is not up to date; run: refdesk reference settings > docs/reference/settings.md"
    )


def test_every_setting_has_a_row_and_a_sentence() -> None:
    page = settings_page()
    for setting in SETTINGS.values():
        assert f"| `{setting.key}` |" in page
        assert setting.description.endswith("."), setting.key


def test_every_well_known_variable_is_named_and_sets_something() -> None:
    page = settings_page()
    for variable in ENVIRONMENT:
        assert variable.key in SETTINGS
        assert f"`{variable.name}`" in page
