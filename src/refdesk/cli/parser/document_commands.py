"""Arguments of the document commands: add, recipes, read, convert, documents, collections and reindex."""

from __future__ import annotations

from refdesk.cli.parser.arguments import (
    Commands,
    add_action_argument,
    add_collection_option,
    add_command,
    add_json_option,
    add_repeatable_option,
    complete_files,
    complete_with,
)

SETS = ("debian", "postgresql", "python", "ubuntu")
"""Documentation sets with a recipe, for shell completion. The recipes are in `refdesk.recipes`."""


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    for add in (_add_add, _add_recipes, _add_read, _add_convert, _add_documents, _add_collections, _add_reindex):
        add(commands)


def _add_add(commands: Commands) -> None:
    add = add_command(
        commands,
        "add",
        "bring documents in, to be searched",
        "refdesk.cli.add:add",
        examples=(
            "refdesk add docs/ --collection handbook",
            "refdesk add https://example.com/guide.html",
            "refdesk add postgresql --version 15",
        ),
    )
    sources = add.add_argument(
        "sources",
        nargs="+",
        metavar="FILE|FOLDER|URL|SET|-",
        help="what to bring in; SET is a documentation set that `refdesk recipes` lists (recipe:NAME where a file has "
        "that name), - is text on standard input, a .jsonl file holds one document a line",
    )
    complete_with(sources, "sources")
    add_collection_option(add, "collection to bring it into, made if need be (default the folder's or the set's name)")
    add.add_argument("--version", metavar="VERSION", default="", help="version of what the documents describe")
    add.add_argument("--title", help="title of the text on standard input")
    add_repeatable_option(add, "--metadata", "NAME=VALUE", "to filter by; may be given several times")
    add.add_argument(
        "--offline", action="store_true", help="of a documentation set, take what this system has installed"
    )
    add_repeatable_option(add, "--ignore", "PATTERN", "files to leave out, as .gitignore names them")
    until = add.add_mutually_exclusive_group()
    until.add_argument("--watch", action="store_true", help="keep the collection in step with the folder until Ctrl-C")
    until.add_argument("--no-wait", action="store_true", help="do not wait until all of it can be found")
    add_json_option(add)


def _add_recipes(commands: Commands) -> None:
    recipes = add_command(
        commands,
        "recipes",
        "list the documentation sets that `refdesk add` knows by name",
        "refdesk.cli.recipes:recipes",
    )
    add_json_option(recipes)


def _add_read(commands: Commands) -> None:
    read = add_command(commands, "read", "read a document in parts", "refdesk.cli.read:read")
    document = read.add_argument("document", metavar="DOCUMENT", help="a file, a URL, a handle or a document's id")
    complete_with(document, "documents")
    part = read.add_mutually_exclusive_group()
    part.add_argument("--section", metavar="ID", help="read this section")
    part.add_argument("--pages", metavar="N[-M]", help="read these pages")
    part.add_argument("--find", metavar="WORDS", help="find passages in it")
    read.add_argument("--cursor", help="go on where the last answer stopped")
    add_json_option(read)


def _add_convert(commands: Commands) -> None:
    convert = add_command(commands, "convert", "convert files, folders or web pages", "refdesk.cli.convert:convert")
    complete_files(convert.add_argument("sources", nargs="+", metavar="FILE|FOLDER|URL", help="what to convert"))
    convert.add_argument(
        "--to", choices=["markdown", "html", "json"], default="markdown", help="form to write (default markdown)"
    )
    output = convert.add_argument(
        "-o", "--output", metavar="PATH", help="file to write, or folder for several (default stdout)"
    )
    complete_files(output)
    convert.add_argument("--pages", metavar="N[-M]", help="only these pages of a PDF")
    add_json_option(convert)


def _add_documents(commands: Commands) -> None:
    documents = add_command(
        commands, "documents", "list the documents, or remove some", "refdesk.cli.documents:documents"
    )
    add_action_argument(documents, "list", "remove")
    complete_with(documents.add_argument("ids", nargs="*", metavar="ID", help="documents to remove"), "documents")
    add_collection_option(documents, "only those of this collection")
    documents.add_argument(
        "--status",
        choices=["pending", "success", "failed", "all"],
        default="all",
        help="only those so far (default all)",
    )
    add_json_option(documents)


def _add_collections(commands: Commands) -> None:
    collections = add_command(
        commands, "collections", "list the collections, make or remove one", "refdesk.cli.documents:collections"
    )
    add_action_argument(collections, "list", "create", "remove")
    names = collections.add_argument(
        "names", nargs="*", metavar="NAME", help="collections to make, or to remove with all they hold"
    )
    complete_with(names, "collections")
    collections.add_argument("--description", default="", help="what a new collection holds")
    collections.add_argument("--version", metavar="VERSION", default="", help="version of what it describes")
    add_json_option(collections)


def _add_reindex(commands: Commands) -> None:
    reindex = add_command(
        commands, "reindex", "build the search indexes anew from what is stored", "refdesk.cli.documents:reindex"
    )
    add_json_option(reindex)
