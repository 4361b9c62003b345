"""Arguments of the document commands: add, recipes, read, convert, documents, collections and reindex."""

from __future__ import annotations

import click

from refdesk.cli.parser.arguments import (
    JSON,
    action,
    argument,
    collection,
    command,
    flag,
    forbid_together,
    list_files,
    list_live,
    option,
)

SETS = ("debian", "postgresql", "python", "ubuntu")
"""Documentation sets with a recipe, for shell completion. The recipes are in `refdesk.ingest.recipes`."""

_wait_or_watch = forbid_together("watch", "no_wait")
_one_part = forbid_together("section", "pages", "find")

COMMANDS = [
    command(
        "add",
        "Add documents to a collection",
        "refdesk.cli.add:add",
        argument(
            "sources",
            "What to add. SET is a documentation set listed by `refdesk recipes` (recipe:NAME if a file has that "
            "name), - is text on standard input, and a .jsonl file has one document per line",
            nargs=-1,
            required=True,
            metavar="FILE|FOLDER|URL|SET|-...",
            shell_complete=list_live("sources"),
        ),
        collection("Collection to add to, created if missing  [default: name of the folder or set]"),
        option("--version", metavar="VERSION", default="", help="Version that the documents describe"),
        option("--title", metavar="TITLE", help="Title of the text on standard input"),
        option("--metadata", metavar="NAME=VALUE", multiple=True, help="Metadata to filter by (repeatable)"),
        flag("--offline", "Use the copy of a documentation set that is installed on this system"),
        option("--ignore", metavar="PATTERN", multiple=True, help="Files to skip, in .gitignore syntax (repeatable)"),
        flag("--watch", "Keep the collection in sync with the folder until Ctrl-C", callback=_wait_or_watch),
        flag("--no-wait", "Return as soon as the documents are queued", callback=_wait_or_watch),
        JSON,
        examples=(
            "refdesk add docs/ --collection handbook",
            "refdesk add https://example.com/guide.html",
            "refdesk add postgresql --version 15",
        ),
    ),
    command("recipes", "List the documentation sets that `refdesk add` knows", "refdesk.cli.recipes:recipes", JSON),
    command(
        "read",
        "Read a document in parts",
        "refdesk.cli.read:read",
        argument("document", "File, URL, handle or document ID", shell_complete=list_live("documents")),
        option("--section", metavar="ID", help="Read this section", callback=_one_part),
        option("--pages", metavar="N[-M]", help="Read these pages", callback=_one_part),
        option("--find", metavar="WORDS", help="Find passages in the document", callback=_one_part),
        option("--cursor", metavar="CURSOR", help="Continue where the last answer stopped"),
        JSON,
    ),
    command(
        "convert",
        "Convert files, folders or web pages",
        "refdesk.cli.convert:convert",
        argument(
            "sources",
            "What to convert",
            nargs=-1,
            required=True,
            metavar="FILE|FOLDER|URL...",
            shell_complete=list_files,
        ),
        option(
            "--to",
            type=click.Choice(["markdown", "html", "json"]),
            default="markdown",
            show_default=True,
            help="Output format",
        ),
        option(
            "-o",
            "--output",
            metavar="PATH",
            help="Output file, or folder for several documents  [default: standard output]",
            shell_complete=list_files,
        ),
        option("--pages", metavar="N[-M]", help="Convert only these pages of a PDF"),
        JSON,
    ),
    command(
        "documents",
        "List or remove documents",
        "refdesk.cli.documents:documents",
        action("list", "remove"),
        argument("ids", "Documents to remove", nargs=-1, metavar="[ID]...", shell_complete=list_live("documents")),
        collection("List only this collection"),
        option(
            "--status",
            type=click.Choice(["pending", "success", "failed", "all"]),
            default="all",
            show_default=True,
            help="List only documents with this status",
        ),
        JSON,
    ),
    command(
        "collections",
        "List, create or remove collections",
        "refdesk.cli.documents:collections",
        action("list", "create", "remove"),
        argument(
            "names",
            "Collections to create, or to remove with their documents",
            nargs=-1,
            metavar="[NAME]...",
            shell_complete=list_live("collections"),
        ),
        option("--description", metavar="TEXT", default="", help="What a new collection contains"),
        option("--version", metavar="VERSION", default="", help="Version that the documents describe"),
        JSON,
    ),
    command("reindex", "Rebuild the search indexes from the stored documents", "refdesk.cli.documents:reindex", JSON),
]
