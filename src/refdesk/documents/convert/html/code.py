"""Programming language of preformatted blocks, from the class names of highlighters."""

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
_ALIASES = {
    "python3": "python",
    "py": "python",
    "py3": "python",
    "ipython3": "python",
    "js": "javascript",
    "pycon3": "pycon",
}

_LANGUAGES = frozenset(
    """rust python bash shell console json yaml toml xml html css javascript typescript java kotlin scala go ruby php
    perl lua sql c cpp csharp swift haskell elixir erlang clojure dart diff ini make cmake dockerfile""".split()
)
"""Names that are unambiguous as a class of their own."""

_ANCESTORS = 7
"""Ancestors inspected: with line numbers, the class is on the `div` around a table that holds the `pre`."""
_STOPS = frozenset(("body", "main", "article", "section", "li", "blockquote"))


def detect_language(node: LexborNode) -> str:
    """Return the language of a `pre`, or an empty string."""
    for name in _iter_names(node):
        language = _ALIASES.get(name.lower(), name.lower())
        if language not in _NO_LANGUAGE and len(language) <= 30:
            return language
    return ""


def _iter_names(node: LexborNode) -> Iterator[str]:
    inner = node.css_first("code")
    yield from _iter_own_names(inner) if inner is not None else ()
    above: LexborNode | None = node
    for _ in range(_ANCESTORS + 1):
        if above is None or above.tag in _STOPS:
            return
        yield from _iter_own_names(above)
        above = above.parent


def _iter_own_names(node: LexborNode) -> Iterator[str]:
    attributes = node.attributes
    yield from filter(None, (attributes.get("data-lang"), attributes.get("data-language")))
    classes = attributes.get("class") or ""
    for by_prefix, by_neighbour in _CLASS.findall(classes):
        yield by_prefix or by_neighbour
    if node.tag in ("pre", "code"):
        yield from (name for name in classes.split() if name in _LANGUAGES)
