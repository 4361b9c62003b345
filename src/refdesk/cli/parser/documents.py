"""Documents: bringing them in, reading and converting them, and what the desk holds."""

from __future__ import annotations

from refdesk.cli.parser.arguments import Commands, as_json, collection, command, files, live, several, verb

SETS = ("debian", "postgresql", "python", "ubuntu")
"""The documentation sets that have a recipe, for shells to complete; `refdesk.recipes` has the recipes."""


def add_to(commands: Commands) -> None:
    """Put these commands into the grammar."""
    for add in (_add, _recipes, _read, _convert, _documents, _collections, _reindex):
        add(commands)


def _add(commands: Commands) -> None:
    add = command(
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
    live(sources, "sources")
    collection(add, "collection to bring it into, made if need be (default the folder's or the set's name)")
    add.add_argument("--version", metavar="VERSION", default="", help="version of what the documents describe")
    add.add_argument("--title", help="title of the text on standard input")
    several(add, "--metadata", "NAME=VALUE", "to filter by; may be given several times")
    add.add_argument(
        "--offline", action="store_true", help="of a documentation set, take what this system has installed"
    )
    several(add, "--ignore", "PATTERN", "files to leave out, as .gitignore names them")
    until = add.add_mutually_exclusive_group()
    until.add_argument("--watch", action="store_true", help="keep the collection in step with the folder until Ctrl-C")
    until.add_argument("--no-wait", action="store_true", help="do not wait until all of it can be found")
    as_json(add)


def _recipes(commands: Commands) -> None:
    recipes = command(
        commands,
        "recipes",
        "list the documentation sets that `refdesk add` knows by name",
        "refdesk.cli.recipes:recipes",
    )
    as_json(recipes)


def _read(commands: Commands) -> None:
    read = command(commands, "read", "read a document in parts", "refdesk.cli.read:read")
    document = read.add_argument("document", metavar="DOCUMENT", help="a file, a URL, a handle or a document's id")
    live(document, "documents")
    part = read.add_mutually_exclusive_group()
    part.add_argument("--section", metavar="ID", help="read this section")
    part.add_argument("--pages", metavar="N[-M]", help="read these pages")
    part.add_argument("--find", metavar="WORDS", help="find passages in it")
    read.add_argument("--cursor", help="go on where the last answer stopped")
    as_json(read)


def _convert(commands: Commands) -> None:
    convert = command(commands, "convert", "convert files, folders or web pages", "refdesk.cli.convert:convert")
    files(convert.add_argument("sources", nargs="+", metavar="FILE|FOLDER|URL", help="what to convert"))
    convert.add_argument(
        "--to", choices=["markdown", "html", "json"], default="markdown", help="form to write (default markdown)"
    )
    output = convert.add_argument(
        "-o", "--output", metavar="PATH", help="file to write, or folder for several (default stdout)"
    )
    files(output)
    convert.add_argument("--pages", metavar="N[-M]", help="only these pages of a PDF")
    as_json(convert)


def _documents(commands: Commands) -> None:
    documents = command(commands, "documents", "list the documents, or remove some", "refdesk.cli.documents:documents")
    verb(documents, "list", "remove")
    live(documents.add_argument("ids", nargs="*", metavar="ID", help="documents to remove"), "documents")
    collection(documents, "only those of this collection")
    documents.add_argument(
        "--status",
        choices=["pending", "success", "failed", "all"],
        default="all",
        help="only those so far (default all)",
    )
    as_json(documents)


def _collections(commands: Commands) -> None:
    collections = command(
        commands, "collections", "list the collections, make or remove one", "refdesk.cli.documents:collections"
    )
    verb(collections, "list", "create", "remove")
    names = collections.add_argument(
        "names", nargs="*", metavar="NAME", help="collections to make, or to remove with all they hold"
    )
    live(names, "collections")
    collections.add_argument("--description", default="", help="what a new collection holds")
    collections.add_argument("--version", metavar="VERSION", default="", help="version of what it describes")
    as_json(collections)


def _reindex(commands: Commands) -> None:
    reindex = command(
        commands, "reindex", "build the search indexes anew from what is stored", "refdesk.cli.documents:reindex"
    )
    as_json(reindex)
