"""Documents that try to run as programs stay text, in every view that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser.conftest import Findings, clear, open_page
from tests.console.browser.desks import DeskProcess, desk_process

RUN = "window.ran=1;alert(1);fetch('https://evil.example/')"
MARKUP = f"<script>{RUN}</script><img src=https://evil.example/x onerror={RUN!r}><svg onload=alert(1)>"
RIGHT_TO_LEFT = "\u202egpj.elif\u2066"
TEXT = f"""# Harmless <img src=x onerror=alert(1)> {MARKUP}

The zebra protocol <script>{RUN}</script> is here, with <b onmouseover="alert(1)">markup</b> and {RIGHT_TO_LEFT}.

[zebra link](javascript:alert(1)) [data](data:text/html,<script>alert(1)</script>) [vb](vbscript:msgbox)
[tabbed](java\tscript:alert(1)) ![zebra](https://evil.example/pixel.png) <javascript:alert(1)>

<iframe src="https://evil.example/" srcdoc="<script>alert(1)</script>"></iframe>
<object data="https://evil.example/"></object><embed src="https://evil.example/"><base href="https://evil.example/">
<form action="https://evil.example/"><button formaction="javascript:alert(1)">zebra</button></form>
<style>* {{ background: url(https://evil.example/css) }}</style><link rel=stylesheet href=https://evil.example/x.css>
<meta http-equiv="refresh" content="0;url=https://evil.example/">

{{{{constructor.constructor('alert(1)')()}}}} ${{alert(1)}} #{{alert(1)}} <%= alert(1) %>

| zebra <svg onload=alert(1)> | b |
| --- | --- |
| <a href="javascript:alert(1)">cell</a> | {MARKUP} |

```html"><script>alert(1)</script>
<script>alert('zebra')</script>
```

## <svg><animate onbegin=alert(1) attributeName=x></svg> heading `<script>alert(1)</script>`

- zebra item {MARKUP}
"""
PAGE = f"<html><head><title>{MARKUP}zebra page</title></head><body><h1>zebra</h1>{TEXT}</body></html>"
COLLECTION = "<img src=x onerror=alert(1)> zoo"

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""
CANARY = "https://canary.example/"
BREAK_POLICY = """async (address) => {
  const image = document.createElement("img");
  const noted = new Promise((resolve) => {
    document.addEventListener("securitypolicyviolation", ({blockedURI}) => blockedURI === address && resolve());
  });
  image.src = address;
  document.body.append(image);
  await noted;
  image.remove();
  window.violations.splice(window.violations.indexOf("img-src"), 1);
}"""
STRANGERS = (
    "script:not([src]), iframe, object, embed, base, form[action], img:not([src$='favicon.svg']), style, animate"
)
FOUND = f"""() => [
  ...[...document.querySelectorAll("{STRANGERS}")].map((element) => element.outerHTML),
  ...[...document.querySelectorAll("*")].flatMap((element) => [...element.attributes]
    .filter(({{name, value}}) => name.startsWith("on") || /^\\s*(java|vb)\\s*script:|^\\s*data:/i.test(value))
    .map(({{name, value}}) => name + "=" + value)),
  ...[...document.querySelectorAll("svg")].filter((element) => !element.closest(".icon, .chart, figure"))
    .map((element) => element.outerHTML),
  ...(window.ran ? ["a script of a document ran"] : []),
  ...window.violations,
]"""


@pytest.fixture(scope="module")
def zoo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeskProcess]:
    """A desk with nothing but such documents, brought in in each way that there is."""
    with desk_process(tmp_path_factory.mktemp("zoo"), model=False) as desk:
        metadata = {"<img src=x onerror=alert(1)>": MARKUP, "link": "javascript:alert(1)", "version": MARKUP[:90]}
        desk.add(f"{MARKUP[:200]} zebra", TEXT, COLLECTION, **metadata)
        desk.add(f"zebra {RIGHT_TO_LEFT}", TEXT, COLLECTION)
        for name, kind in (("<img src=x onerror=alert(1)>.html", PAGE), ("\"'><svg onload=alert(1)>.md", TEXT)):
            desk.upload(name, kind, COLLECTION)
        yield desk


@pytest.fixture(scope="module")
def watching_page(browser: Browser, zoo: DeskProcess) -> Iterator[Page]:
    with open_page(browser, zoo.url, color_scheme="light") as (page, findings):
        findings.forget(page)
        page.add_init_script(WATCH)
        yield page


@pytest.fixture
def zoo_page(watching_page: Page, zoo: DeskProcess) -> Iterator[Page]:
    findings = Findings(zoo.url, expected=[CANARY])
    findings.watch(watching_page)
    yield watching_page
    settle(watching_page)
    assert watching_page.evaluate(FOUND) == []
    findings.forget(watching_page)
    clear(watching_page)
    assert findings.list_unexpected() == []


def settle(page: Page) -> None:
    """Let everything run that a document has started: break the policy last, and wait until that is noted."""
    page.evaluate(BREAK_POLICY, CANARY)


def ids(zoo: DeskProcess) -> list[str]:
    return [document["id"] for document in zoo.post("/api/console/documents", {"limit": 50})["documents"]]


def test_in_the_search(zoo_page: Page, zoo: DeskProcess) -> None:
    zoo_page.goto(f"{zoo.url}/console/?q=zebra+protocol+script&limit=50")
    expect(zoo_page.locator(".result").first).to_be_visible()
    expect(zoo_page.locator(".results")).to_contain_text("<script>")
    expect(zoo_page.locator("option", has_text="zoo (")).to_have_count(1)
    for mark in zoo_page.locator(".result").all():
        mark.hover()
    zoo_page.get_by_role("tab", name="Raw response").click()


def test_in_a_query_that_somebody_else_has_put_into_the_address(zoo_page: Page, zoo: DeskProcess) -> None:
    hostile = quote('"><script>alert(1)</script>{{7*7}}')
    zoo_page.goto(
        f"{zoo.url}/console/?q={hostile}&collection={hostile}&mode={hostile}&limit={hostile}&filters={hostile}"
    )
    expect(zoo_page.locator(".error-box, .result, .empty").first).to_be_visible()


def test_in_the_reader(zoo_page: Page, zoo: DeskProcess) -> None:
    documents = [id for id in ids(zoo) if not id.startswith("refdesk/")]
    assert len(documents) >= 4
    for id in documents:
        zoo_page.goto(f"{zoo.url}/console/read?id={quote(id, safe='')}")
        expect(zoo_page.locator(".reader-text")).to_contain_text("zebra")
        assert zoo_page.evaluate(FOUND) == []
        hrefs = zoo_page.locator(".reader-text a").evaluate_all("links => links.map((link) => link.protocol)")
        assert set(hrefs) <= {"http:", "https:", "mailto:"}


def test_in_an_answer(zoo_page: Page, zoo: DeskProcess) -> None:
    zoo_page.goto(f"{zoo.url}/console/ask?q=what+is+the+zebra+protocol+script")
    expect(zoo_page.get_by_role("region", name="Answer")).to_be_visible()


def test_in_the_list_of_documents(zoo_page: Page, zoo: DeskProcess) -> None:
    zoo_page.goto(f"{zoo.url}/console/documents")
    expect(zoo_page.locator("main")).to_contain_text("zebra")


def test_what_turns_the_reading_direction_around_stays_within_its_own_text(zoo_page: Page, zoo: DeskProcess) -> None:
    zoo_page.goto(f"{zoo.url}/console/?q=zebra+elif&limit=50")
    expect(zoo_page.locator(".result").first).to_be_visible()
    loose = zoo_page.evaluate("""() => {
      const isolated = (element) => /isolate|plaintext/.test(getComputedStyle(element).unicodeBidi)
        || getComputedStyle(element).display !== "inline";
      const walker = document.createTreeWalker(document.querySelector(".results"), NodeFilter.SHOW_TEXT);
      const found = [];
      while (walker.nextNode()) {
        const {data, parentElement} = walker.currentNode;
        const held = parentElement.closest("bdi, p, li, td, pre") || isolated(parentElement);
        if (data.includes("\\u202e") && !held) found.push(data);
      }
      return found;
    }""")
    assert loose == []


def test_the_watch_would_notice_a_script_that_runs(browser: Browser, zoo: DeskProcess) -> None:
    with open_page(browser, zoo.url) as (page, findings):
        page.add_init_script(WATCH)
        page.goto(f"{zoo.url}/console/")
        expect(page.locator("h1")).to_be_visible()
        page.evaluate("""() => {
          const image = document.createElement("img");
          image.setAttribute("src", "https://evil.example/x");
          document.body.append(image);
          window.ran = 1;
        }""")
        settle(page)
        found = page.evaluate(FOUND)
    assert "a script of a document ran" in found
    assert "img-src" in found
    assert any("Content Security Policy" in problem for problem in findings.problems)
