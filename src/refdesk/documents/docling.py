"""The words that the DoclingDocument schema has for ours; `export.docling` writes it, `convert.docling` reads it."""

from __future__ import annotations

SCHEMA_NAME = "DoclingDocument"
VERSION = "1.10.0"

SPANS = "refdesk__spans"
"""Our own fields live in an item's `meta`, which is open to prefixed names: docling keeps and ignores them."""
ROLE = "refdesk__role"
NOTICE = "notice"
ANCHOR = "refdesk__anchor"
LANGUAGE = "refdesk__language"
PROPERTIES = "refdesk__properties"

LANGUAGES = tuple(
    "Ada Awk Bash bc C C# C++ CMake COBOL CSS Ceylon Clojure Crystal Cuda Cython D Dart dc Dockerfile Elixir Erlang "
    "FORTRAN Forth Go HTML Haskell Haxe Java JavaScript JSON Julia Kotlin Latex Lisp Lua Matlab MoonScript Nim OCaml "
    "ObjectiveC Octave PHP Pascal Perl Prolog Python Racket Ruby Rust SML SQL Scala Scheme Swift TypeScript "
    "VisualBasic XML YAML".split()
)
"""The programming languages that the schema names."""

_ALIASES = {
    "sh": "Bash",
    "shell": "Bash",
    "console": "Bash",
    "cpp": "C++",
    "csharp": "C#",
    "js": "JavaScript",
    "ts": "TypeScript",
    "py": "Python",
    "python3": "Python",
    "rb": "Ruby",
    "rs": "Rust",
    "tex": "Latex",
    "yml": "YAML",
}
_BY_NAME = {language.lower(): language for language in LANGUAGES} | _ALIASES


def map_language(language: str) -> str:
    """The schema's name of a programming language, or `unknown`."""
    return _BY_NAME.get(language.lower(), "unknown")
