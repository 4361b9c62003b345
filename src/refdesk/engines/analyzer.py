"""Text analyzer of the full-text index and of queries.

Plain words are lowercased, stripped of accents and stemmed. Identifiers (`pg_dump`, `--no-owner`, `postgresql.conf`,
`getResult`) are indexed whole and in parts, so that both match. Scripts without spaces are split into bigrams. Pure:
the same text always gives the same terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

VERSION = 1
"""Version of the analysis. An index built with another version is rebuilt."""

MAX_WORD = 64
"""Longer runs of characters (keys, hashes, data URLs) are skipped: nobody types them."""

TERM_CACHE_SIZE = 1 << 16
"""Distinct words whose terms are cached. A large manual has about 30,000, and stemming one takes 3 µs."""

QUERY_CACHE_SIZE = 64
"""Queries whose terms are cached: each is used for several indexes, and then for ranking."""

PART_WEIGHT = 0.7
"""Weight of an identifier's part in a query, relative to the whole identifier."""

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being both but by can cannot could did do
    does doing done don during e.g each either else ever every few for from get gets got had has have having he her
    here his how however i i.e if in into is isn it its itself just let like may me might more most much must my
    need no nor not of off on once one only onto or other our ours out over own please quite rather s same shall she
    should show since so some still such t tell than that the their them then there these they this those through
    thus to too under until up upon us use used uses using very via want was way we were what when where whether
    which while who whom whose why will with within without would yes you your
    """.split()
)
"""Stop words. They still count in headings, where they distinguish one from another."""

_ENGLISH_WORDS = frozenset(
    """
    and are be been by can could did do does for from had has have how i i'm i've if into is it its my not of our should
    than that the there these they this those to us we were what when where which who whose why with would you your
    """.split()
)

_LINK = re.compile(
    r"!?\[((?:[^\[\]]++|\[[^\[\]]*+\])*+)\]"  # link text, which may contain brackets
    r"\((?:<[^>\n]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"\n]*\")?\)"
)
_RULE = re.compile(r"^[ \t]*(?:```\S*|~~~\S*|\|(?:\s*:?-+:?\s*\|)+|[-*_]{3,})[ \t]*$", re.MULTILINE)
_LINE_PREFIX = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)", re.MULTILINE)
_MARKS = str.maketrans({"`": None, "|": " "})
_WHITESPACE = re.compile(r"[ \t]*\n\s*|[ \t]{2,}")

_SPACELESS = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
"""Thai, Kana, Han and Hangul."""

_LETTER = rf"(?:(?![{_SPACELESS}])\w)"
_WORD = re.compile(
    rf"[{_SPACELESS}]+"
    r"|(?<![\w-])-[a-zA-Z](?![\w-])"  # a one-letter option
    rf"|{_LETTER}+(?:[-.:/@+'’]+{_LETTER}+)*(?:\+\+|\#)?"
)
_IDENTIFIER = re.compile(
    r"(?<![\w$/-])--[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*"  # a long option
    r"|(?<![\w$/-])[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?![./-]?\w)"
    r"|(?<![\w$/-])[a-z]+(?:[A-Z][a-z0-9]+)+(?![./-]?\w)"
    r"|(?<![\w$/-])[A-Za-z][A-Za-z0-9]+(?=\()"  # a function
)
_QUESTION = re.compile(
    r"[?？]|\b(?:i|i'm|i've|i'd|my|me|mine|we|our|us)\b"
    r"|^\W*(?:how|what|whats|why|when|where|which|who|whose|can|could|do|does|did|is|are|was|were|has|have|should|would"
    r"|will|may|must|any)\b",
    re.IGNORECASE,
)
_DEFINITION_QUESTION = re.compile(
    r"\W*(?:what(?:'s|\s+is|\s+are)|define)\s+(?:(?:an?|the)\s+)?(\w[^?.,;:!]{1,50}?)(?:\s+for)?\W*", re.IGNORECASE
)
_NAME = re.compile(r"\w*[A-Za-z0-9]_\w+|\w*[a-z][A-Z]\w*|\w{2,}(?:\.\w{2,})+")
_PLAIN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SPACELESS_RUN = re.compile(f"[{_SPACELESS}]+")
_APOSTROPHE_SUFFIX = re.compile(r"['’](?:s|t|re|ve|ll|d|m)$", re.IGNORECASE)
_NAME_SEPARATOR = re.compile(r"\W+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")


def _build_analyzer(*filters: Filter) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.raw())
    for one in filters:
        builder = builder.filter(one)
    return builder.build()


_fold_analyzer = _build_analyzer(Filter.lowercase(), Filter.ascii_fold())
_stem_analyzer = _build_analyzer(Filter.lowercase(), Filter.ascii_fold(), Filter.stemmer("English"))


def strip_markdown(markdown: str) -> str:
    """Return the text without link targets, fences, rules, backticks and table bars."""
    return _WHITESPACE.sub(_collapse_whitespace, _strip_marks(_LINE_PREFIX.sub("", _strip_links(markdown)))).strip()


def _strip_links(markdown: str) -> str:
    """Replace links by their text, and remove fences and rules."""
    return _RULE.sub("", _LINK.sub(r"\1", markdown) if "](" in markdown else markdown)


def _strip_marks(text: str) -> str:
    return text.replace("**", "").translate(_MARKS)


def _collapse_whitespace(match: re.Match[str]) -> str:
    return "\n" if "\n" in match[0] else " "


def measure_links(markdown: str) -> tuple[int, int]:
    """Return the characters of link text, and those of link markup and URLs.

    An estimate: a link with brackets in its text or URL counts for less.
    """
    pieces = markdown.split("](")
    inside = marks = 0
    for before, after in pairwise(pieces):
        inside += len(before) - before.rfind("[") - 1
        marks += after.find(")") + len("[]()")
    return inside, marks


def build_heading_path(title: str, path: Sequence[str]) -> tuple[str, ...]:
    """Return the headings above a passage, starting with the document's title, without duplicates."""
    return tuple(path) if not title or title in path else (title, *path)


def extract_index_terms(text: str) -> list[str]:
    """Return all terms of a text in order, including the parts of identifiers."""
    return [term for word in _WORD.findall(text) for term in _expand_word(word)]


def split_words(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the words of a text with their terms: the whole word first, then its parts. A bigram counts as a word."""
    for word in _WORD.findall(text):
        terms = _expand_word(word)
        if _SPACELESS_RUN.match(word):
            yield from ((term, (term,)) for term in terms)
        elif terms:
            yield word, terms


def match_terms(markdown: str, query_terms: Mapping[str, float]) -> set[str]:
    """Return the query terms that a text contains.

    Equivalent to `extract_index_terms` on the stripped text, but faster.
    """
    words = set(_WORD.findall(_strip_marks(_strip_links(markdown))))
    return {term for word in words for term in _expand_word(word) if term in query_terms}


def is_english(query: str) -> bool:
    """Whether a query has a function word that only English has."""
    return not _ENGLISH_WORDS.isdisjoint(word.lower() for word in _WORD.findall(query))


def is_question(query: str) -> bool:
    """Whether an English query is a question in a person's own words, not keywords, a title or a statement."""
    return _QUESTION.search(query) is not None


@lru_cache(maxsize=QUERY_CACHE_SIZE)
def build_definition_pattern(query: str) -> re.Pattern[str] | None:
    """Return a pattern of sentences such as "A submodule is …" if an English query asks what something is."""
    match = _DEFINITION_QUESTION.fullmatch(query)
    if match is None:
        return None
    subject = r"\s+".join(map(re.escape, match[1].removesuffix("s").split()))
    sentence = rf"(?:^|[.:!?]\s+)(?:(?:an?|the)\s+)?{subject}s?\s+(?:is|are)\s+(?:an?|the)\b"
    return re.compile(sentence, re.IGNORECASE | re.MULTILINE)


def find_identifiers(query: str) -> dict[str, str]:
    """Return the names in a query that can only be meant literally, each with its term in the index.

    These are names with underscores (`wal_sender_timeout`), long options (`--autosquash`), mixed-case names
    (`maxBytes`) and functions (`repr()`). Of a dotted name (`sqlite3.Row`) only the last part counts, since modules get
    aliases.
    """
    return {match[0]: _expand_word(match[0].lstrip("-"))[0] for match in _IDENTIFIER.finditer(query)}


@lru_cache(maxsize=QUERY_CACHE_SIZE)
def find_name_terms(query: str) -> frozenset[str]:
    """Return the terms of the identifiers in a query: words with an underscore, a dot or a capital letter inside."""
    return frozenset(_expand_word(word)[0] for word in _WORD.findall(query) if _NAME.fullmatch(word))


@lru_cache(maxsize=QUERY_CACHE_SIZE)
def weigh_query_terms(text: str) -> Mapping[str, float]:
    """Return the terms of a query with their weights. Repeated terms count more, parts of identifiers less."""
    weights: dict[str, float] = {}
    for word in _WORD.findall(text):
        for number, term in enumerate(_expand_word(word)):
            weights[term] = weights.get(term, 0.0) + (PART_WEIGHT if number else 1.0)
    return weights


def is_stop_word(term: str) -> bool:
    """Whether a term is a stop word."""
    return term in _STOP_TERMS


@lru_cache(maxsize=TERM_CACHE_SIZE)
def _expand_word(word: str) -> tuple[str, ...]:
    """Return the terms of one word: one for a plain word, the whole and its parts for an identifier."""
    if _PLAIN.fullmatch(word):
        return (_stem(word),) if len(word) <= MAX_WORD else ()
    if _SPACELESS_RUN.match(word):
        return _split_bigrams(word)
    return tuple(term for term in _expand_name(_APOSTROPHE_SUFFIX.sub("", word)) if len(term) <= MAX_WORD)


def _expand_name(name: str) -> Iterator[str]:
    """Yield the identifier, the names in it (`information_schema` in `information_schema.columns`), and their words."""
    names = [part for part in _NAME_SEPARATOR.split(name) if part]
    if names != [name]:
        yield _fold(name)
    for part in names:
        yield from _expand_part(part)


def _expand_part(part: str) -> Iterator[str]:
    words = [word for piece in part.split("_") for word in _CAMEL_CASE_BOUNDARY.split(piece) if word]
    if words and words != [part]:
        yield _fold(part)
    for word in words:
        yield _stem(word)


def _split_bigrams(run: str) -> tuple[str, ...]:
    return tuple(a + b for a, b in pairwise(run)) or (run,)


def _fold(name: str) -> str:
    return _fold_analyzer.analyze(name)[0]


def _stem(word: str) -> str:
    return _stem_analyzer.analyze(word)[0]


_STOP_TERMS = frozenset(term for word in STOP_WORDS for term in _expand_word(word))
