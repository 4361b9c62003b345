"""The documents that a reader is taken to have: each page speaks of a few files of one's own."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.sites import SCIFACT, manual_pages
from tests.ingest.recipes.sites import tar_of

FILES = ROOT / "tests" / "files"

HANDBOOK = {
    "deploy.md": "# Deploying\n\n## Roll back a release\n\nRun `shipit rollback --to VERSION`. The last five releases "
    "are kept; older ones have to be built again.\n\n## Ship a release\n\nRun `shipit up`.\n",
    "howto/vacation.md": "# Vacation\n\n## How many days do I have?\n\nEverybody has 30 days of vacation a year. Up to "
    "5 days can be taken over into the next year, until 31 March.\n",
}

SUBSTITUTES = {
    "doc-mtfntf7sw7lexzzv7gcu3y6ahv": "doc-bgilw6q6agtm3fiavl47hg5mrp",
    "3-2-5-retiring": "1-1-before-dusk",
    "c166": "c3",
    '"query": "orphan"': '"query": "dusk"',
    "$(python3 -c 'import secrets; print(secrets.token_urlsafe(32))')": "a-key-of-the-readers-own",
    '"page_start": 17, "page_end": 18': '"page_start": 3, "page_end": 4',
    "--pages 17-18": "--pages 3-4",
    "upload://doc-mtgp7a6ftmsecsibwpppwieax3": "upload://doc-v6cpsmco6jfqf6p7bkvrk5der7",
}
"""The pages read a manual of 114 pages that is not in the repository; a small one with its own ids stands for it."""

LOG_LINE = "grep 0af7651916cd43dd8448eb211c80319c refdesk.log"
SUBSTITUTES[LOG_LINE] = f"until {LOG_LINE}; do sleep 0.1; done"  # a busy server logs a call after it has answered

ADD = ".venv/bin/refdesk add handbook notes.jsonl >/dev/null"
CONVERT = (
    "curl -s http://127.0.0.1:8001/api/tools/convert_pdf -H 'Content-Type: application/json' "
    """-d '{"file_path": "developers-reference.pdf"}' >/dev/null"""
)

BEFORE = {
    "docs/how-to/choose-an-embedding-model.md": "printf 'embedding:\\n  source: none\\n' >refdesk.yaml",
    "docs/how-to/index-a-repository.md": "git -C ~/code/shop -c init.defaultBranch=main init --quiet\n"
    "git -C ~/code/shop add .\n"
    "git -C ~/code/shop -c user.name=a -c user.email=a@example.com commit --quiet --message Release\n"
    "git -C ~/code/shop tag v2.0",
    "docs/how-to/measure-search-quality.md": ADD,
    "docs/how-to/migrate.md": "export CONTEXT7_API_KEY=given\nclaude mcp add docs -- true >/dev/null",
    "docs/how-to/put-servers-behind-it.md": "export TRACKER_TOKEN=given\n"
    ".venv/bin/refdesk servers add notes -- python notes_server.py >/dev/null",
    "docs/how-to/read-a-long-document.md": CONVERT,
    "docs/how-to/run-in-production.md": ".venv/bin/refdesk add handbook --data data >/dev/null",
    "docs/how-to/search-and-ask.md": ADD,
    "docs/how-to/use-it-from-another-service.md": CONVERT,
}
"""What a reader of a page has done before, as the page or the one before it says."""

DESKS = {
    "docs/how-to/require-api-keys.md": {"MCP_AUTH_REQUIRED": "true", "MCP_API_KEY": "a-key-of-the-readers-own"},
    "docs/how-to/serve-a-team.md": {"MCP_API_KEY": "rd_a_key_of_yours"},
}
"""How the desk is started for a page that speaks of one with other settings."""

NOTES_SERVER = '''\
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="ERROR")


@server.tool()
def find_notes(text: str, limit: int = 3) -> str:
    """Search the release notes."""
    return f"{text}: nothing in {limit} notes"


server.run("stdio")
'''


def furnish(folder: Path, home: Path) -> None:
    """Put a handbook, some files in common formats, notes and a small server into the folder, and a client at home."""
    _write(home / ".cursor/mcp.json", '{"mcpServers": {"memory": {"command": "python", "args": ["memory.py"]}}}\n')
    for name, text in HANDBOOK.items():
        _write(folder / "handbook" / name, text)
    for name in ("report.pdf", "developers-reference.pdf"):
        shutil.copy(FILES / "pdf" / "manual.pdf", folder / name)
    for name in ("insert.docx", "notes.docx"):
        shutil.copy(FILES / "office" / "guide.docx", folder / name)
    _write(folder / "papers/guide.md", (FILES / "office" / "guide.md").read_text("utf-8"))
    _write(folder / "report.md", "# Report\n\nNo problems found.\n")
    notes = {"id": "n1", "title": "Backups", "text": "Backups run every night at 2:00 and are kept for 30 days."}
    _write(folder / "notes.jsonl", json.dumps(notes | {"team": "ops"}) + "\n")
    _write(folder / "notes_server.py", NOTES_SERVER)
    _write(folder / "docs/how-to/convert-documents.md", (ROOT / "docs/how-to/convert-documents.md").read_text("utf-8"))
    _write(folder / ".vscode/mcp.json", '{"servers": {"local": {"command": "python", "args": ["server.py"]}}}\n')
    _write(home / "code/shop/.gitignore", "docs/build/\n")
    _write(home / "code/shop/docs/testing.md", "# Testing\n\n## Run the tests\n\nRun `make test`.\n")
    _write(home / "code/shop/docs/build/html/index.html", "<h1>Shop API</h1><p>Call <code>pay()</code> to pay.</p>")
    _release(folder, home)
    for name in ("benchmarks", "deploy", "examples", "plugins", ".claude-plugin"):
        if (ROOT / name).is_dir():
            (folder / name).symlink_to(ROOT / name)


def _release(folder: Path, home: Path) -> None:
    """What a page's first lines would have brought: a package's manual, an archive of pages, a tag of the shop."""
    for path, text in manual_pages("15.10").items():
        _write(folder / "manual/usr/share/doc/postgresql-doc-15/html" / path, text)
        _write(home / "system/usr/share/doc/postgresql-doc-15/html" / path, text)
    archive = tar_of({"library-2.4-docs/index.md": "# Library 2.4\n\nCall `open()` first.\n"})
    (folder / "library-2.4-docs.tar.gz").write_bytes(gzip.compress(archive))


def leave_behind(folder: Path, home: Path, site: int, find: Callable[[str], str | None] = shutil.which) -> None:
    """Write the files that programs of a page would, where they are missing: the commands after them are run."""
    if not find("git"):
        shutil.copytree(home / "code/shop", home / "code/shop-2.0")
    if not find("unzip"):
        for path, text in SCIFACT.items():
            _write(folder / path, text)
    if not find("wget"):
        _write(folder / f"site/127.0.0.1:{site}" / "index.html", "<title>Guide</title><h1>Guide</h1><p>Read it.</p>")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
