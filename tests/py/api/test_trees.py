"""Directories into sandboxes and out of them: what is kept, and what a sandbox cannot make of it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from api_doubles import MemoryProvider

from nemo_gym_sandbox import AsyncSandbox, Sandbox, SandboxExecResult, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NAMES = ["plain", "with blank", "quote'd", 'double"d', "new\nline", "-dash", "☕", "$HOME", "*", "back\\slash", "a;b"]


@pytest.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox({"local": {"isolation": "none"}}, SandboxSpec()) as sandbox:
        await sandbox.start()
        yield sandbox


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Something of everything that is kept."""
    root = tmp_path / "tree"
    for folder in ("empty/deep", "only links", "closed", *(f"names/{name}" for name in NAMES)):
        (root / folder).mkdir(parents=True)
        if folder.startswith("names"):
            (root / folder / Path(folder).name).write_text(folder)
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_bytes(bytes(range(256)) * 1000)
    (root / "secret").chmod(0o600)
    (root / "nothing").touch()
    (root / "closed" / "file").touch()
    (root / "closed").chmod(0o700)
    (root / "only links" / "up").symlink_to("../run.sh")
    (root / "only links" / "tail\n").symlink_to("nowhere\n")
    (root / "folder link").symlink_to("closed")
    (root / "-link").symlink_to("secret")
    return root


def described(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory that is to be kept."""

    def entries() -> Iterator[tuple[str, tuple[Any, ...]]]:
        for path in root.rglob("*"):
            name, mode = str(path.relative_to(root)), stat.S_IMODE(path.lstat().st_mode)
            if path.is_symlink():
                yield name, ("link", os.readlink(path))
            elif path.is_dir():
                yield name, ("folder", mode)
            else:
                yield name, ("file", mode, path.read_bytes())

    return dict(entries())


async def test_a_tree_goes_there_and_back_whole(sandbox: AsyncSandbox, tree: Path, tmp_path: Path):
    expected = described(tree)
    assert len(expected) > 30
    await sandbox.upload_dir(tree, "there/below")
    workspace = Path((await sandbox.exec("pwd")).stdout.strip())  # without isolation this machine sees it
    assert described(workspace / "there/below") == expected
    await sandbox.download_dir("there/below", tmp_path / "new" / "back")
    assert described(tmp_path / "new" / "back") == expected
    # Again, over what is there, by absolute path.
    (tree / "run.sh").write_text("changed")
    (tree / "-link").unlink()
    (tree / "-link").symlink_to("run.sh")
    await sandbox.upload_dir(str(tree), f"{workspace}/there/below/")
    await sandbox.download_dir(f"{workspace}/there/below/", tmp_path / "new" / "back")
    assert described(tmp_path / "new" / "back") == described(tree) != expected


async def test_a_sandbox_without_find_and_stat_is_listed_by_its_shell(tree: Path, tmp_path: Path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("ls", "pwd", "ln", "mkdir", "chmod", "sh"):
        (tools / tool).symlink_to(shutil.which(tool) or "missing")
    spec = SandboxSpec(env={"PATH": str(tools)})
    async with AsyncSandbox({"local": {"isolation": "none"}}, spec) as sandbox:
        await sandbox.start()
        assert (await sandbox.exec("find . || stat . || readlink .")).return_code == 127
        await sandbox.upload_dir(tree, "there")
        await sandbox.download_dir("there", tmp_path / "back")
    expected = described(tree)
    # Of modes only the right to execute is known.
    for name, entry in expected.items():
        if entry[0] == "folder":
            expected[name] = ("folder", 0o755)
        elif entry[0] == "file":
            expected[name] = ("file", 0o755 if entry[1] & 0o100 else 0o644, entry[2])
    assert described(tmp_path / "back") == expected


async def test_modes_are_set_by_a_command_for_providers_that_do_not_keep_them(tree: Path):
    provider = MemoryProvider()
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.upload_dir(tree, "/there")
    (script,) = [command for command, _ in provider.execs]
    assert "\nchmod 755 -- /there/run.sh\n" in script
    assert "\nchmod 600 -- /there/secret\n" in script
    assert provider.files["/there/run.sh"] == b"#!/bin/sh\necho ran\n"


async def test_a_tree_of_plain_files_needs_no_shell(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").touch(0o644)
    provider = MemoryProvider()
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.upload_dir(tmp_path, "x")
    assert provider.execs == []
    assert list(provider.files) == ["x/a/b/f"]


@pytest.mark.parametrize(("remote", "file"), [("", "f"), (".", "./f"), ("/", "/f"), ("a/", "a/f"), ("/a//", "/a/f")])
async def test_where_a_tree_goes(remote: str, file: str, tmp_path: Path):
    (tmp_path / "f").touch(0o644)
    provider = MemoryProvider()
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.upload_dir(tmp_path, remote)
    assert list(provider.files) == [file]


async def test_long_lists_are_cut_into_commands_that_fit(sandbox: AsyncSandbox, tmp_path: Path):
    source = tmp_path / "source"
    for number in range(1500):
        (source / f"{number:03d}-{'n' * 60}").mkdir(parents=True)
        (source / f"link-{number:03d}").symlink_to("x" * 60)
    await sandbox.upload_dir(source, "there")
    await sandbox.download_dir("there", tmp_path / "back")
    assert described(tmp_path / "back") == described(source)


async def test_a_link_does_not_land_in_a_directory_of_its_name(sandbox: AsyncSandbox, tmp_path: Path):
    (tmp_path / "link").symlink_to("target")
    await sandbox.exec("mkdir -p there/link")
    with pytest.raises(RuntimeError, match="link is a directory"):
        await sandbox.upload_dir(tmp_path, "there")
    assert (await sandbox.exec("ls -A there/link")).stdout == ""


async def test_special_files_are_left_out_with_a_warning(
    sandbox: AsyncSandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "pipe")
    (tmp_path / "source" / "file").touch()
    with caplog.at_level(logging.WARNING, "nemo_gym_sandbox"):
        await sandbox.upload_dir(tmp_path / "source", "there")
        assert "pipe" in caplog.messages.pop()
        assert (await sandbox.exec("ls there; mkfifo there/other")).stdout == "file\n"
        caplog.clear()
        await sandbox.download_dir("there", tmp_path / "back")
        assert "other" in caplog.text
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["file"]


async def test_what_is_missing_or_no_directory_is_said(sandbox: AsyncSandbox, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="not-here"):
        await sandbox.upload_dir(tmp_path / "not-here", "there")
    with pytest.raises(NotADirectoryError):
        await sandbox.upload_dir(tmp_path / "file", "there")
    await sandbox.exec("touch file")
    for remote in ("not-there", "file"):
        with pytest.raises(RuntimeError, match=remote):
            await sandbox.download_dir(remote, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    with pytest.raises(ValueError, match="concurrency"):
        await sandbox.upload_dir(tmp_path, "x", concurrency=0)
    with pytest.raises(ValueError, match="outside_links"):
        await sandbox.download_dir("x", tmp_path, outside_links="follow")  # type: ignore[arg-type]


async def test_a_name_that_is_no_text_is_refused(sandbox: AsyncSandbox, tmp_path: Path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / os.fsdecode(b"bad-\xff")).touch()
    with pytest.raises(ValueError, match="not UTF-8"):
        await sandbox.upload_dir(tmp_path / "source", "there")
    await sandbox.exec("mkdir there; touch there/$(printf 'bad-\\377')")
    with pytest.raises(RuntimeError, match="not UTF-8"):
        await sandbox.download_dir("there", tmp_path / "back")


async def test_links_that_lead_out_of_the_tree(sandbox: AsyncSandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    await sandbox.exec("mkdir -p t/d; cd t; ln -s /etc/passwd abs; ln -s ../.. d/out; ln -s ../in d/inside; touch in")
    with pytest.raises(RuntimeError, match=r"'abs' -> '/etc/passwd'"):
        await sandbox.download_dir("t", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    with caplog.at_level(logging.WARNING, "nemo_gym_sandbox"):
        await sandbox.download_dir("t", tmp_path / "skipped", outside_links="skip")
    assert "abs" in caplog.text
    assert sorted(described(tmp_path / "skipped")) == ["d", "d/inside", "in"]
    await sandbox.download_dir("t", tmp_path / "kept", outside_links="keep")
    assert described(tmp_path / "kept")["d/out"] == ("link", "../..")


@pytest.mark.parametrize(
    ("link", "target", "inside"),
    [
        ("a", "b", True),
        ("a/b", "../c", True),
        ("a/b", "./../c/./d", True),
        ("a", ".", True),
        ("a", "..", False),
        ("a/b", "../../c", False),
        ("a", "/b", False),
        ("a", "b/../c", False),  # b may be a link upwards
        ("a/b/c", "../../d", True),
    ],
)
def test_what_counts_as_leading_out(link: str, target: str, inside: bool):
    from nemo_gym_sandbox._trees import _stays_inside

    assert _stays_inside(link, target) is inside


class Liar(MemoryProvider):
    """A sandbox that says anything of its tree."""

    def __init__(self, listing: str) -> None:
        super().__init__()
        self.listing = listing

    async def exec(self, handle: Any, command: str, **_options: Any) -> SandboxExecResult:
        return SandboxExecResult(self.listing, "", 0)

    async def download_file(self, handle: Any, source_path: str, target_path: Path) -> None:
        target_path.write_text("evil")  # noqa: ASYNC240


def listed(*entries: tuple[str, int, str | None]) -> str:
    text = ""
    for name, mode, target in ((".", 0o40755, None), *entries):
        text += f"1\0{name}\0{mode:x}\n\0" + (f"{target}\n\0" if target is not None else "")
    return text


FILE, FOLDER, LINK = 0o100644, 0o40755, 0o120777


@pytest.mark.parametrize(
    "listing",
    [
        listed(("./../outside", FILE, None)),
        listed(("/outside", FILE, None)),
        listed(("./a/../../outside", FILE, None)),
        listed(("./a//b", FILE, None)),
        listed(("outside", FILE, None)),
        listed(("./missing/file", FILE, None)),
        listed(("./link", LINK, "."), ("./link/file", FILE, None)),
        listed(("./file", FILE, None), ("./file/file", FILE, None)),
        listed(("./x", FILE, None)) + "7\0./y\0",
        "1\0",
        "no listing",
        "",
        "99999999999999999999\0./a\0",
    ],
)
async def test_a_listing_that_cannot_be_is_refused(listing: str, tmp_path: Path):
    async with AsyncSandbox(Liar(listing), SandboxSpec()) as sandbox:
        await sandbox.start()
        with pytest.raises((RuntimeError, OSError)):
            await sandbox.download_dir("/x", tmp_path / "down" / "here")
    assert not {"outside", "file"} & {Path(name).name for name in described(tmp_path)}


async def test_nothing_is_written_through_links_of_an_earlier_download(tmp_path: Path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text("precious")
    local = tmp_path / "down"
    local.mkdir()
    (local / "folder").symlink_to("../host")
    (local / "file").symlink_to("../host/file")
    async with AsyncSandbox(Liar(listed(("./file", FILE, None))), SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.download_dir("/x", local)
    assert (local / "file").read_text() == "evil"
    assert not (local / "file").is_symlink()
    listing = listed(("./folder", FOLDER, None), ("./folder/file", FILE, None))
    async with AsyncSandbox(Liar(listing), SandboxSpec()) as sandbox:
        await sandbox.start()
        with pytest.raises(NotADirectoryError, match="folder"):
            await sandbox.download_dir("/x", local)
    assert (tmp_path / "host" / "file").read_text() == "precious"


async def test_dangerous_bits_do_not_come_along(sandbox: AsyncSandbox, tmp_path: Path):
    await sandbox.exec("mkdir t t/d; touch t/f; chmod 6755 t/f; chmod 1777 t/d")
    await sandbox.download_dir("t", tmp_path / "back")
    assert described(tmp_path / "back") == {"f": ("file", 0o755, b""), "d": ("folder", 0o777)}


class Slow(MemoryProvider):
    """Counts how many uploads are under way at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    async def upload_file(self, handle: Any, source_path: Path, target_path: str) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await super().upload_file(handle, source_path, target_path)
            await asyncio.sleep(0.01)
        finally:
            self.now -= 1


async def test_files_go_several_at_a_time_within_a_bound(tmp_path: Path):
    for number in range(20):
        (tmp_path / str(number)).touch(0o644)
    provider = Slow()
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.upload_dir(tmp_path, "x", concurrency=3)
    assert provider.most == 3
    assert len(provider.files) == 20


async def test_the_first_failure_ends_the_rest_and_is_raised_itself(tmp_path: Path):
    for number in range(200):
        (tmp_path / f"{number:03d}").touch(0o644)
    provider = Slow()
    provider.fail = {"upload_file": [OSError("disk full")]}
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        with pytest.raises(OSError, match="disk full"):
            await sandbox.upload_dir(tmp_path, "x", concurrency=2)
        assert provider.now == 0
    assert len(provider.files) < 10


async def test_a_cancelled_upload_leaves_no_task(tmp_path: Path):
    (tmp_path / "f").touch(0o644)
    provider = MemoryProvider()
    reached, go_on = provider.hold("upload_file")
    async with AsyncSandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.start()
        before = asyncio.all_tasks()
        upload = asyncio.create_task(sandbox.upload_dir(tmp_path, "x"))
        await reached.wait()
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert asyncio.all_tasks() == before
        go_on.set()


async def test_nothing_goes_before_the_start_or_after_the_end(tmp_path: Path):
    sandbox = AsyncSandbox(MemoryProvider(), SandboxSpec())
    with pytest.raises(RuntimeError, match="not been started"):
        await sandbox.upload_dir(tmp_path, "x")
    with pytest.raises(RuntimeError, match="not been started"):
        await sandbox.download_dir("x", tmp_path)
    await sandbox.stop()


def test_the_blocking_face_has_both(tree: Path, tmp_path: Path):
    with Sandbox({"local": {"isolation": "none"}}, SandboxSpec()) as sandbox:
        sandbox.start()
        sandbox.upload_dir(tree, "there", concurrency=2)
        sandbox.download_dir("there", tmp_path / "back", concurrency=2, outside_links="keep")
    assert described(tmp_path / "back") == described(tree)
