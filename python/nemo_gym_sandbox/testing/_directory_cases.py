"""Whole directories up and down."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from nemo_gym_sandbox.testing._box import Box, equal, expect, raises
from nemo_gym_sandbox.testing._case import Group

if TYPE_CHECKING:
    from pathlib import Path

GROUP = Group("directories")
case = GROUP.case


def _tree(root: Path) -> Path:
    for folder in ("empty/deep", "with blank", "new\nline", "closed"):
        (root / folder).mkdir(parents=True)
    for number in range(20):
        (root / "with blank" / f"{number}.txt").write_text(f"{number}\n" * number)
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "closed" / "secret").touch(0o600)
    (root / "closed").chmod(0o700)
    (root / "new\nline" / "up").symlink_to("../run.sh")
    (root / "nowhere").symlink_to("not there")
    return root


def _described(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            entry: tuple[object, ...] = ("link", os.readlink(path))
        elif stat.S_ISDIR(mode):
            entry = ("directory", oct(stat.S_IMODE(mode)))
        else:
            entry = ("file", oct(stat.S_IMODE(mode)), path.read_bytes())
        found[str(path.relative_to(root))] = entry
    return found


@case()
async def a_tree_comes_back_changed(box: Box) -> None:
    """Contents, permissions, links and empty directories stay."""
    tree = _tree(box.local("tree"))
    want = _described(tree)
    async with box.scratch() as scratch:
        for _ in range(2):  # the second time over what is there
            await box.sandbox.upload_dir(tree, f"{scratch}/there")
        await box.bash(f"cd {scratch}/there && ./run.sh && readlink nowhere", "ran\nnot there\n")
        back = box.local("back")
        for _ in range(2):
            await box.sandbox.download_dir(f"{scratch}/there", back)
        got = _described(back)
        different = {name for name in want.keys() | got.keys() if want.get(name) != got.get(name)}
        expect(not different, f"these differ: { {name: (want.get(name), got.get(name)) for name in different} }")


@case()
async def a_tree_of_the_sandbox_leads_out_of_itself(box: Box) -> None:
    """Links out of it are refused, and nothing is made here."""
    async with box.scratch() as scratch:
        await box.ok(f"cd {scratch}; mkdir t; touch t/file; ln -s /etc/passwd t/link")
        local = box.local("down")
        await raises(
            box.sandbox.download_dir(f"{scratch}/t", local), RuntimeError, saying="'link'", what="the download"
        )
        expect(not local.exists(), "something is left")
        await box.sandbox.download_dir(f"{scratch}/t", local, outside_links="keep")
        equal(_described(local)["link"], ("link", "/etc/passwd"), "the link that was to be kept")


@case()
async def a_missing_directory_is_taken_for_an_empty_one(box: Box) -> None:
    """It is an error that names it."""
    async with box.scratch() as scratch:
        await box.ok(f"touch {scratch}/file")
        for name in ("nope", "file"):
            work = box.sandbox.download_dir(f"{scratch}/{name}", box.local("down"))
            await raises(work, RuntimeError, saying=name, what=f"the download of {name}")
        work = box.sandbox.upload_dir(box.local("not-here"), f"{scratch}/up")
        await raises(work, OSError, saying="not-here", what="the upload")
        await box.bash(f"ls {scratch}", "file\n")
