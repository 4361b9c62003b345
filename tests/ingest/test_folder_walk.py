"""Walking a folder: what is found, what is left alone, and what is told to be out of reach."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from refdesk.errors import CannotOpen
from refdesk.ingest.folder_walk import MAX_RULE, FoundFile, SkippedPath, parse_rules, walk
from tests.programs import needs
from tests.waiting import PATIENCE_SECONDS


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def rules(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines))


def find_files(folder: Path, *ignore: str, max_files: int = 1000) -> list[str]:
    items = walk(folder, ignore=ignore, max_files=max_files)
    return [item.relative for item in items if isinstance(item, FoundFile)]


def find_skipped(folder: Path, max_files: int = 1000) -> list[SkippedPath]:
    return [item for item in walk(folder, max_files=max_files) if isinstance(item, SkippedPath)]


def test_documents_are_found_in_order_by_how_their_names_end(tmp_path: Path) -> None:
    write(tmp_path, "z.md", "A.PDF", "b/x.html", "b/a.rst", "a/deep/er/n.txt", "code.py", "no-suffix", "b/.md")
    assert find_files(tmp_path) == ["A.PDF", "z.md", "a/deep/er/n.txt", "b/a.rst", "b/x.html"]


def test_a_file_is_told_with_what_shows_a_change(tmp_path: Path) -> None:
    write(tmp_path, "a.md")
    os.utime(tmp_path / "a.md", ns=(5, 7))
    inode = (tmp_path / "a.md").stat().st_ino
    assert list(walk(tmp_path, max_files=1)) == [FoundFile(tmp_path / "a.md", "a.md", 1, 7, inode)]


def test_hidden_and_installed_and_generated_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, ".hidden.md", ".git/x.md", "node_modules/p/README.md", "lib/__pycache__/x.txt", "kept.md")
    write(tmp_path, "env/pyvenv.cfg", "env/lib/README.md", "cache/CACHEDIR.TAG", "cache/x.md")
    assert find_files(tmp_path) == ["kept.md"]


def test_build_output_is_left_alone_only_beside_a_project(tmp_path: Path) -> None:
    write(tmp_path, "app/Cargo.toml", "app/target/doc/x.html", "app/guide.md", "marketing/target/groups.md")
    assert find_files(tmp_path) == ["app/guide.md", "marketing/target/groups.md"]


def test_the_folder_that_is_named_is_walked_whatever_its_name(tmp_path: Path) -> None:
    write(tmp_path, ".node_modules/node_modules/a.md", ".node_modules/node_modules/pyvenv.cfg")
    assert find_files(tmp_path / ".node_modules" / "node_modules") == ["a.md"]


def test_a_rule_can_bring_back_what_is_left_alone_by_default(tmp_path: Path) -> None:
    write(tmp_path, "package.json", "dist/a.md", "node_modules/b.md")
    rules(tmp_path, ".refdeskignore", "!dist/")
    assert find_files(tmp_path) == ["dist/a.md"]


def test_rules_hold_where_they_stand_and_the_nearer_wins(tmp_path: Path) -> None:
    write(tmp_path, "draft.md", "a/draft.md", "a/b/draft.md", "a/b/other.md", "c/other.md")
    rules(tmp_path, ".gitignore", "draft.md")
    rules(tmp_path / "a", ".gitignore", "!draft.md", "b/other.md")
    rules(tmp_path / "a" / "b", ".refdeskignore", "draft.md")
    assert find_files(tmp_path) == ["a/draft.md", "c/other.md"]


def test_our_own_rules_go_before_those_of_git_and_the_callers_before_all(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md", "c.md")
    rules(tmp_path, ".gitignore", "a.md", "b.md")
    rules(tmp_path, ".refdeskignore", "!a.md", "!b.md")
    assert find_files(tmp_path, "b.md") == ["a.md", "c.md"]


def test_a_folder_that_is_ignored_keeps_what_is_in_it_out(tmp_path: Path) -> None:
    write(tmp_path, "old/a.md", "old/keep.md")
    rules(tmp_path, ".gitignore", "old/", "!old/keep.md")
    assert find_files(tmp_path) == []


PATTERNS = [
    "*.md", "!keep.md", "/top.md", "docs/", "docs/*.md", "docs/**", "**/deep", "a/**/z.md", "?.md", "[ab].md",
    "[!ab].md", "[^ab].md", "b*", "*e*p*", "\\#x.md", "\\!x.md", "# comment", "x.md  ", "a/*", "a/*/z.md", "**", "*/",
    "!a/", "deep/z.md", "/docs", "docs/../x.md", "a**z.md", "/**/z.md", "z.md/", "\\*.md", "\\x.md",
]  # fmt: skip
PATHS = [
    "top.md", "keep.md", "a.md", "b.md", "c.md", "#x.md", "!x.md", "x.md", "docs/top.md", "docs/a/z.md", "deep/z.md",
    "a/z.md", "a/b/z.md", "a/b/c/z.md", "a/deep/z.md", "a/docs/x.md", "bb/z.md/y.md",
]  # fmt: skip


@needs("git")
def test_git_ignores_the_same_files(tmp_path: Path) -> None:
    write(tmp_path, *PATHS)
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=PATIENCE_SECONDS)
    command = ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
    cases = [[one] for one in PATTERNS] + [[one, other] for one in PATTERNS[::4] for other in PATTERNS[1::5]]
    for lines in cases:
        rules(tmp_path, ".gitignore", *lines)
        listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout
        expected = {path for path in listed.split("\0") if path.endswith(".md")}
        assert set(find_files(tmp_path)) == expected, lines


def test_a_rule_made_to_hang_does_not(tmp_path: Path) -> None:
    name = "a" * 200 + ".md"
    write(tmp_path, "/".join(["d"] * 40 + [name]))
    rules(tmp_path, ".gitignore", "*a" * 30 + "*b", "**/d/" * 30 + "x", "**/*a*a*a*a*c/" * 20 + "y")
    assert len(find_files(tmp_path)) == 1
    assert parse_rules(["z" * (MAX_RULE + 1)]).rules == ()


def test_links_lead_neither_out_of_the_folder_nor_round_in_a_circle(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "in-other"
    write(inside, "a.md", "sub/b.md")
    write(outside, "secret.md")
    (inside / "loop").symlink_to(inside)
    (inside / "sub" / "up").symlink_to("..")
    (inside / "away").symlink_to(outside)
    (inside / "secret.md").symlink_to(outside / "secret.md")
    (inside / "alias.md").symlink_to("sub/b.md")
    (inside / "broken.md").symlink_to("nowhere.md")
    (inside / "self.md").symlink_to("self.md")
    assert find_files(inside) == ["a.md", "alias.md", "sub/b.md"]


def test_a_pipe_is_no_document(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    os.mkfifo(tmp_path / ".gitignore")
    assert list(walk(tmp_path, max_files=1)) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_told_and_the_walk_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "closed/a.md", "open/b.md")
    (tmp_path / "closed").chmod(0)
    try:
        assert find_files(tmp_path) == ["open/b.md"]
        assert find_skipped(tmp_path) == [SkippedPath("closed", "The folder can't be read: Permission denied.")]
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_rules_that_cannot_be_heeded_are_told(tmp_path: Path) -> None:
    write(tmp_path, "docs/a.md")
    (tmp_path / "docs" / ".gitignore").write_bytes(b"*.md\n" + b"#" * 1_000_000)
    (problem,) = find_skipped(tmp_path)
    assert problem.relative == "docs/.gitignore"
    assert "too long" in problem.reason


def test_a_name_that_cannot_be_stored_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("x")
    (problem,) = walk(tmp_path, max_files=9)
    assert problem == SkippedPath("caf\\udce9.md", "Its name is not valid UTF-8: rename it.")


def test_no_more_files_than_agreed_are_found_and_it_is_told(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md", "c.md")
    assert find_files(tmp_path, max_files=2) == ["a.md", "b.md"]
    (problem,) = find_skipped(tmp_path, max_files=2)
    assert (problem.relative, "more than 2 documents" in problem.reason) == (".", True)
    assert find_skipped(tmp_path, max_files=3) == []


@pytest.mark.parametrize("name", ["missing", "file.md"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "file.md")
    with pytest.raises(CannotOpen, match="isn't a readable folder"):
        list(walk(tmp_path / name, max_files=1))
