"""Which URIs a URI template stands for."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.downstream.fleet.snapshot import MAX_EXPRESSIONS, MAX_URI_LENGTH, parse_template


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{path}", "file:///a.txt"),
        ("file:///{+path}", "file:///a/b/c.txt"),
        ("db://{table}/{id}", "db://users/7"),
        ("x://{a}-{b}.md", "x://one-two-three.md"),
        ("x://list{?page,size}", "x://list?page=1&size=2"),
        ("x://list{?page,size}", "x://list"),
        ("x://list?a=1{&b}", "x://list?a=1&b=2"),
        ("x://tree{/path*}", "x://tree/a/b/c"),
        ("x://doc{#part}", "x://doc#one/two"),
        ("x://file{.kind}", "x://file.tar.gz"),
        ("x://at{;v}", "x://at;v=2"),
        ("x://plain", "x://plain"),
        ("x://{user}", "x://a@b:c"),
        ("x://{name}/end", "x://caf%C3%A9/end"),
    ],
)
def test_a_uri_that_the_template_can_be_filled_to_fits(template: str, uri: str) -> None:
    parsed = parse_template(template)
    assert parsed is not None
    assert parsed.fits(uri)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{path}", "file:///a/b"),
        ("file:///{path}", "file:///"),
        ("db://{table}/{id}", "db://users"),
        ("x://list{?page}", "x://list/other"),
        ("x://{a}/end", "x://a/end/more"),
        ("x://plain", "x://plainer"),
        ("x://{a}", "y://a"),
        ("x://{a}", "x://" + "a" * MAX_URI_LENGTH),
    ],
)
def test_another_uri_does_not(template: str, uri: str) -> None:
    parsed = parse_template(template)
    assert parsed is not None
    assert not parsed.fits(uri)


@pytest.mark.parametrize("template", ["{+everything}", "{scheme}://x", "", "x:" + "{a}/" * (MAX_EXPRESSIONS + 1)])
def test_a_template_that_claims_everything_or_has_no_end_stands_for_nothing(template: str) -> None:
    assert parse_template(template) is None


@pytest.mark.parametrize("part", ["{+a}a", "{a}a", "{/a}/", "{a}{b}", "{?a}a"])
def test_no_template_takes_long(part: str) -> None:
    template = parse_template("x:" + part * (MAX_EXPRESSIONS // part.count("{")))
    assert template is not None
    for letter in "a/?":
        uri = Counted("x:" + letter * (MAX_URI_LENGTH - 10) + "!")
        template.fits(uri)
        assert uri.looks <= 2 * (MAX_EXPRESSIONS + 1) * MAX_URI_LENGTH


class Counted(str):
    """A text that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> str:
        self.looks += 1
        return super().__getitem__(place)

    def startswith(self, *given: Any) -> bool:
        self.looks += 1
        return super().startswith(*given)
