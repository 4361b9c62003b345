"""Opening files by name: what lies under the roots can be had, and nothing else, however it is asked for."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refdesk.documents.files import MAX_PATH_CHARACTERS, MAX_STEPS, OpenedFile, Roots
from refdesk.errors import CannotOpen

SECRET = b"from outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a guide in it, beside a folder with a secret."""
    root = tmp_path / "docs"
    (root / "guides").mkdir(parents=True)
    (root / "guides" / "Install.md").write_bytes(b"# Install")
    (root / "readme.md").write_bytes(b"# Read me")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.md").write_bytes(SECRET)
    return root


def content(opened: OpenedFile) -> bytes:
    with opened:
        return os.read(opened.fd, 1000)


def refusal(roots: Roots, path: str) -> str:
    with pytest.raises(CannotOpen) as caught:
        content(roots.open(path))
    return str(caught.value)


@pytest.mark.parametrize(
    "spelling",
    [
        "guides/Install.md",
        "./guides//Install.md",
        "guides/../guides/Install.md",
        "{root}/guides/Install.md",
        "file://{root}/guides/Install.md",
        "file://localhost{root}/guides/Install.md",
        "FILE://{root}/guides/%49nstall.md#usage",
    ],
)
def test_a_file_under_a_root_opens_by_every_honest_spelling(root: Path, spelling: str) -> None:
    opened = Roots([root]).open(spelling.format(root=root))
    assert (opened.name, opened.size, opened.path) == ("Install.md", 9, root / "guides" / "Install.md")
    assert content(opened) == b"# Install"


def test_leaving_the_block_closes_the_file(root: Path) -> None:
    with Roots([root]).open("readme.md") as opened:
        pass
    with pytest.raises(OSError):
        os.fstat(opened.fd)


def test_no_descriptor_stays_open_whether_a_file_is_found_or_not(root: Path) -> None:
    roots = Roots([root])
    before = len(os.listdir("/dev/fd"))
    for path in ("guides/Install.md", "guides/missing.md", "guides/Install.md/deeper", "guides", "../outside"):
        try:
            content(roots.open(path))
        except CannotOpen:
            continue
    assert len(os.listdir("/dev/fd")) == before


def test_relative_paths_are_tried_under_each_root_in_order(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "readme.md").write_bytes(b"second")
    (second / "only.md").write_bytes(b"only")
    (second / "guides").write_bytes(b"a file here, a folder in the first root")
    roots = Roots([tmp_path / "gone", root, second])
    assert content(roots.open("readme.md")) == b"# Read me"
    assert content(roots.open("only.md")) == b"only"
    assert content(roots.open("guides")).startswith(b"a file here")
    assert content(roots.open(str(second / "readme.md"))) == b"second"


def test_a_root_may_itself_be_a_link_and_files_be_named_either_way(root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    roots = Roots([tmp_path / "current"])
    assert content(roots.open("readme.md")) == b"# Read me"
    assert content(roots.open(str(tmp_path / "current" / "readme.md"))) == b"# Read me"
    assert content(roots.open(str(root / "readme.md"))) == b"# Read me"


@pytest.mark.parametrize(
    "target", ["guides/Install.md", "./guides/../guides/Install.md", "{root}/guides/Install.md", "chain"]
)
def test_a_link_to_a_file_in_the_same_root_works(root: Path, target: str) -> None:
    (root / "chain").symlink_to("guides/Install.md")
    (root / "link.md").symlink_to(target.format(root=root))
    opened = Roots([root]).open("link.md")
    assert opened.path == root / "guides" / "Install.md"
    assert content(opened) == b"# Install"


def test_dots_behind_a_linked_folder_go_back_from_where_it_leads(root: Path) -> None:
    (root / "guides" / "deep").mkdir()
    (root / "short").symlink_to("guides/deep")
    assert content(Roots([root]).open("short/../Install.md")) == b"# Install"


ESCAPES = [
    "../outside/secret.md",
    "guides/../../outside/secret.md",
    "/etc/passwd",
    "{outside}/secret.md",
    "{root}/../outside/secret.md",
    "file://{outside}/secret.md",
    "file:///..{outside}/secret.md",
    "%2e%2e/outside/secret.md",
    "file://{root}/%2e%2e/outside/secret.md",
    "..\\outside\\secret.md",
    "relative-link.md",
    "absolute-link.md",
    "folder-link/secret.md",
    "sneaky-link.md",
    "chain-link.md",
    "root-link/etc/passwd",
    "proc-link/1/environ",
    "self-link/cwd/readme.md",
    "fd-link/0",
    "circle-link",
    "{root}-evil/secret.md",
    "//etc/passwd",
    "~/secret.md",
    "readme.md/../../outside/secret.md",
]


@pytest.fixture
def trap(root: Path, tmp_path: Path) -> Path:
    """The same folder, with links that lead out of it in all the ways there are."""
    outside = tmp_path / "outside"
    (tmp_path / "docs-evil").mkdir()
    (tmp_path / "docs-evil" / "secret.md").write_bytes(SECRET)
    for name, target in {
        "relative-link.md": "../outside/secret.md",
        "absolute-link.md": f"{outside}/secret.md",
        "folder-link": str(outside),
        "sneaky-link.md": f"{root}/../outside/secret.md",
        "chain-link.md": "relative-link.md",
        "root-link": "/",
        "proc-link": "/proc",
        "self-link": "/proc/self",
        "fd-link": "/proc/self/fd",
        "circle-link": "circle-link",
    }.items():
        (root / name).symlink_to(target)
    return root


@pytest.mark.parametrize("path", ESCAPES)
def test_what_lies_outside_answers_as_what_does_not_exist(trap: Path, tmp_path: Path, path: str) -> None:
    asked = path.format(root=trap, outside=tmp_path / "outside")
    roots = Roots([trap])
    there = refusal(roots, asked)
    for secret in ("outside", "docs-evil"):
        (tmp_path / secret / "secret.md").unlink()
    assert refusal(roots, asked) == there
    assert there.startswith("There is no file ") or " is outside the folders that are open to tools: " in there
    assert str(trap) in there


def test_a_path_in_another_folder_is_told_the_setting_that_opens_it(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "outside" / "secret.md"
    told = refusal(Roots([root]), str(secret))
    assert told == (
        f"{str(secret)!r} is outside the folders that are open to tools: {root}. Copy the file into one of them, or "
        f"add its folder {str(secret.parent)!r} to convert.roots."
    )
    secret.unlink()
    assert refusal(Roots([root]), str(secret)) == told


@pytest.mark.parametrize("path", ["", " ", "/", "..", ".", "../..", "readme.md\0", "file:", "file:///%00", "\0"])
def test_what_names_no_file_is_refused(root: Path, path: str) -> None:
    assert "isn't a file path" in refusal(Roots([root]), path)


@pytest.mark.parametrize(
    "path",
    [
        "\ud800.md",
        "x\udcff.md",
        "x" * 300,
        "a/" * 1500 + "x",
        "file://{root}/%ff%fe",
        "guides/../" * (MAX_STEPS // 2) + "readme.md",
    ],
)
def test_names_that_no_file_can_have_are_missing_files(root: Path, path: str) -> None:
    message = refusal(Roots([root]), path.format(root=root))
    assert message.startswith("There is no file ")
    for told in (message, refusal(Roots([root]), f"file:///%ff%fe/{'x' * 300}/a.md")):
        assert len(told) < 800
        told.encode()


def test_a_path_that_is_too_long_is_refused_at_once(root: Path) -> None:
    assert "longer than" in refusal(Roots([root]), "x" * (MAX_PATH_CHARACTERS + 1))


def test_a_file_on_another_host_is_refused(root: Path) -> None:
    assert "another host" in refusal(Roots([root]), f"file://server{root}/readme.md")


def test_a_folder_is_not_a_file(root: Path) -> None:
    assert "is a folder" in refusal(Roots([root]), "guides")
    assert "is a folder" in refusal(Roots([root]), str(root))


def test_a_pipe_is_refused_without_waiting_for_its_writer(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert "not a regular file" in refusal(Roots([root]), "pipe")


def test_a_socket_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert "not a regular file" in refusal(Roots([root]), "socket")


def test_a_device_is_refused() -> None:
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert "not a regular file" in refusal(Roots([Path("/dev")]), "null")


def test_links_of_the_system_itself_are_not_followed_even_in_an_open_folder(root: Path) -> None:
    with (root / "readme.md").open() as file:
        assert "There is no file" in refusal(Roots([Path("/dev")]), f"fd/{file.fileno()}")


def test_a_hard_link_is_a_file_like_any_other(root: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "outside" / "secret.md", root / "hard.md")
    assert content(Roots([root]).open("hard.md")) == SECRET


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("guides/install.md", "guides/Install.md"),
        ("guides/Instal.md", "guides/Install.md"),
        ("readme.md ", "readme.md"),
        ("'readme.md'", "readme.md"),
        ("guide/Install.md", "guides"),
    ],
)
def test_a_path_that_misses_narrowly_is_told_the_nearest_name(root: Path, path: str, nearest: str) -> None:
    assert f"Did you mean {nearest!r}?" in refusal(Roots([root]), path)


def test_a_path_outside_is_told_no_names(root: Path, tmp_path: Path) -> None:
    assert "Did you mean" not in refusal(Roots([root]), str(tmp_path / "outside" / "secre.md"))
    assert "Did you mean" not in refusal(Roots([root]), "../outside/secre.md")


def test_a_desk_without_folders_says_so() -> None:
    assert "No folder is open to tools. Set convert.roots" in refusal(Roots([]), "readme.md")


SWAPPER = """
import os, sys
place, inside, outside = sys.argv[1:]
print("ready", flush=True)
while os.getppid() == {parent}:
    os.link(inside, place + ".spare")
    os.rename(place + ".spare", place)
    os.symlink(outside, place + ".spare")
    os.rename(place + ".spare", place)
"""


@contextmanager
def swapping(place: Path, inside: Path, outside: Path) -> Iterator[None]:
    """Another process puts now a file and now a link to the outside in one place, each in a single step."""
    program = SWAPPER.format(parent=os.getpid())
    command = [sys.executable, "-I", "-S", "-c", program, str(place), str(inside), str(outside)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def test_a_file_swapped_for_a_link_in_thousands_of_races_never_leads_outside(root: Path, tmp_path: Path) -> None:
    seen: set[bytes] = set()
    opened = refused = 0
    roots = Roots([root])
    with swapping(root / "place.md", root / "readme.md", tmp_path / "outside" / "secret.md"):
        # On a busy machine the other process may not have its turn for a while.
        while opened + refused < 5000 or not opened or not refused:
            try:
                seen.add(content(roots.open("place.md")))
                opened += 1
            except CannotOpen:
                refused += 1
    assert seen == {b"# Read me"}


@pytest.mark.parametrize(("place", "asked"), [("readme.md", "readme.md"), ("guides", "guides/secret.md")])
def test_a_link_put_in_just_between_look_and_opening_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, asked: str
) -> None:
    (root / "guides" / "secret.md").write_bytes(b"from inside")
    look = os.stat

    def look_then_swap(name: str, **how: Any) -> os.stat_result:
        found = look(name, **how)
        if name == place:
            (root / place).rename(tmp_path / "aside")
            (root / place).symlink_to(tmp_path / "outside" / ("secret.md" if place == asked else ""))
        return found

    monkeypatch.setattr(os, "stat", look_then_swap)
    assert "There is no file" in refusal(Roots([root]), asked)


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (".git/config", ".git/confi"),
        (".git", ".giu"),
        (".git/hooks", ".git/hook/x"),
        ("data/tenants/n-acme/knowledge.db", "data/tenants/n-acm/knowledge.db"),
        ("data/tenants", "data/tenant"),
        ("settings.yaml", "settings.yam"),
    ],
)
def test_nothing_shows_what_is_in_hidden_and_closed_folders(root: Path, path: str, missing: str) -> None:
    for file in (".git/config", ".git/hooks/pre-push", "data/tenants/n-acme/knowledge.db", "settings.yaml"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(SECRET)
    roots = Roots([root], closed=[root / "data", root / "settings.yaml"])
    assert refusal(roots, path).replace(path, "") == refusal(roots, missing).replace(missing, "")
    assert refusal(roots, path).endswith("Check the path.")


@pytest.mark.parametrize("path", [".env", "sub/.git/config", ".hidden/notes.txt", "link.txt"])
def test_hidden_files_stay_shut(tmp_path: Path, path: str) -> None:
    hidden = tmp_path / (".env" if path == "link.txt" else path)
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.write_text("secret")
    (tmp_path / "link.txt").symlink_to(tmp_path / ".env")
    with pytest.raises(CannotOpen, match="There is no file"):
        Roots([tmp_path]).open(path)


def test_what_is_the_desks_own_stays_shut_whatever_leads_there(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "root" / "data"
    data.mkdir(parents=True)
    (data / "tenant.md").write_text("secret")
    (root / "refdesk.yaml").write_text("secret")
    (root / "link").symlink_to(data)
    (root / "notes.md").write_text("open")
    (tmp_path / "alias").symlink_to(root)
    for folder in (root, tmp_path / "alias"):
        roots = Roots([folder], closed=[data, root / "refdesk.yaml"])
        for path in (
            "data/tenant.md",
            "link/tenant.md",
            "refdesk.yaml",
            str(folder / "refdesk.yaml"),
            "data/../refdesk.yaml",
        ):
            with pytest.raises(CannotOpen, match="There is no file"):
                roots.open(path)
        with roots.open("notes.md") as file:
            assert file.name == "notes.md"
