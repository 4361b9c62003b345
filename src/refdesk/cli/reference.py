"""`refdesk reference`: print the reference pages of the manual."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from refdesk.cli.parser import PAGES


def reference(arguments: SimpleNamespace) -> None:
    """Run `refdesk reference`: print one page, or the names of all."""
    if arguments.page:
        text = read_page(arguments.page)
        print(json.dumps({"page": arguments.page, "text": text}) if arguments.json else text, end="")
    else:
        print(json.dumps(PAGES) if arguments.json else "\n".join(PAGES))


def read_page(name: str) -> str:
    """Return a reference page, from an installed package or from the `docs` of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "manual_pages"
    manual = installed if installed.is_dir() else package.parents[1] / "docs"
    return (manual / "reference" / f"{name}.md").read_text("utf-8")
