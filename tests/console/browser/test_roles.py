"""What a caller may not do is not offered, and refused all the same; each tenant sees its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.conftest import assert_accessible, open_page, shoot
from tests.console.browser.desks import AuthDesk
from tests.console.browser.operating import LOOKS, assert_fits


@contextmanager
def sign_in(browser: Browser, auth_desk: AuthDesk, name: str, **options: Any) -> Iterator[Page]:
    """A page of somebody."""
    with open_page(browser, auth_desk.desk.url, **options) as (page, findings):
        page.add_init_script(f"sessionStorage.setItem('refdesk.key', '{auth_desk.keys[name]}')")
        yield page
    assert findings.list_unexpected() == []


def test_a_reader_sees_documents_and_nothing_to_change_them_with(browser: Browser, auth_desk: AuthDesk) -> None:
    with sign_in(browser, auth_desk, "rita") as page:
        page.goto(f"{auth_desk.desk.url}/console/documents?collection=rules")
        expect(page.get_by_role("link", name="House rules")).to_be_visible()
        for name in ("Choose files…", "Add page", "New collection", "Delete collection", "Delete House rules"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        expect(page.get_by_role("row").get_by_role("checkbox")).to_have_count(0)
        expect(page.get_by_role("link", name="Keys")).to_have_count(0)
        shoot(page, "documents-reader")


def test_the_desk_refuses_what_the_page_does_not_offer(browser: Browser, auth_desk: AuthDesk) -> None:
    with open_page(browser, auth_desk.desk.url) as (page, _):
        page.goto(f"{auth_desk.desk.url}/console/favicon.svg")
        for action, params in {
            "delete_documents": {"ids": ["rules/house-rules"]},
            "create_collection": {"name": "x"},
            "keys": {},
            "set_server": {"name": "x", "enabled": False},
        }.items():
            headers = {"Authorization": f"Bearer {auth_desk.keys['rita']}"}
            answer = page.request.post(f"{auth_desk.desk.url}/api/console/{action}", data=params, headers=headers)
            assert answer.status == 403, action


def test_the_keys_page_says_why_it_is_not_for_everybody(browser: Browser, auth_desk: AuthDesk) -> None:
    with sign_in(browser, auth_desk, "wim") as page:
        page.goto(f"{auth_desk.desk.url}/console/keys")
        expect(page.get_by_role("heading", name="This page is for administrators")).to_be_visible()
        expect(page.get_by_text("keys with the role admin")).to_be_visible()


def test_a_tenant_does_not_see_the_documents_of_another(browser: Browser, auth_desk: AuthDesk) -> None:
    with sign_in(browser, auth_desk, "wim") as page:
        page.goto(f"{auth_desk.desk.url}/console/documents")
        expect(page.get_by_role("heading", name="No documents yet")).to_be_visible()
        expect(page.get_by_role("button", name="Choose files…")).to_be_visible()
        expect(page.get_by_text("House rules")).to_have_count(0)


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_the_keys_view_is_accessible_and_fits(browser: Browser, auth_desk: AuthDesk, theme: str, width: int) -> None:
    with sign_in(browser, auth_desk, "olga", color_scheme=theme, viewport={"width": width, "height": 900}) as page:
        page.goto(f"{auth_desk.desk.url}/console/keys")
        expect(page.get_by_role("region", name="Tenants").get_by_role("row").filter(has_text="builds")).to_be_visible()
        assert_accessible(page)
        assert_fits(page)
        shoot(page, f"keys-{theme}-{width}")
