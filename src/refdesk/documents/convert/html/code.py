"""The language of a preformatted block, as highlighters note it in class names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborNode

_CLASS = re.compile(
    r"(?:^|\s)(?:language|lang|highlight-source|brush|src|highlight)[-:]\s*([\w+#.-]+)"
    r"|(?:^|\s)(?:sourceCode|hljs|code)\s+([\w+#.-]+)",
)
_NO_LANGUAGE = frozenset(
    """default none no text txt plain plaintext plain-text nohighlight unknown raw output code highlight source
    literal-block sourcecode numbersource block wrapper notranslate copyable line-numbers linenums""".split()
)
_SAME = {
    "python3": "python",
    "py": "python",
    "py3": "python",
    "ipython3": "python",
    "js": "javascript",
    "pycon3": "pycon",
}

_ANCESTORS = 3
"""How far up the language is noted: `div.highlight-python > div.highlight > table > … > pre` is the farthest known."""


def language_of(node: LexborNode) -> str:
    """The language of a `pre`, or nothing."""
    for name in _names(node):
        language = _SAME.get(name.lower(), name.lower())
        if language not in _NO_LANGUAGE and len(language) <= 30:
            return language
    return ""


def _names(node: LexborNode) -> Iterator[str]:
    inner = node.css_first("code")
    yield from _named_by(inner) if inner is not None else ()
    above: LexborNode | None = node
    for _ in range(_ANCESTORS + 1):
        if above is None or above.tag == "body":
            return
        yield from _named_by(above)
        above = above.parent


def _named_by(node: LexborNode) -> Iterator[str]:
    attributes = node.attributes
    yield from filter(None, (attributes.get("data-lang"), attributes.get("data-language")))
    for by_prefix, by_neighbour in _CLASS.findall(attributes.get("class") or ""):
        yield by_prefix or by_neighbour
