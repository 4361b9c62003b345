"""DoclingDocument schema names, shared by `export.docling` and `convert.docling`."""

from __future__ import annotations

SCHEMA_NAME = "DoclingDocument"
VERSION = "1.10.0"

SPANS = "refdesk__spans"
"""Custom fields go to an item's `meta`, which allows prefixed names: docling preserves and ignores them."""
ROLE = "refdesk__role"
NOTICE = "notice"
TERM = "refdesk__term"
"""Title of a term and the number of blocks in its definition."""
ANCHOR = "refdesk__anchor"
LANGUAGE = "refdesk__language"
PROPERTIES = "refdesk__properties"

LANGUAGES = tuple(
    "Ada Awk Bash bc C C# C++ CMake COBOL CSS Ceylon Clojure Crystal Cuda Cython D Dart dc Dockerfile Elixir Erlang "
    "FORTRAN Forth Go HTML Haskell Haxe Java JavaScript JSON Julia Kotlin Latex Lisp Lua Matlab MoonScript Nim OCaml "
    "ObjectiveC Octave PHP Pascal Perl Prolog Python Racket Ruby Rust SML SQL Scala Scheme Swift TypeScript "
    "VisualBasic XML YAML".split()
)
"""Programming languages of the schema."""

_BY_NAME = {language.lower(): language for language in LANGUAGES} | dict(
    alias.split(":")
    for alias in "sh:Bash shell:Bash console:Bash cpp:C++ csharp:C# js:JavaScript ts:TypeScript py:Python "
    "python3:Python rb:Ruby rs:Rust tex:Latex yml:YAML".split()
)


def map_language(language: str) -> str:
    """Return the schema's name of a programming language, or `unknown`."""
    return _BY_NAME.get(language.lower(), "unknown")
