"""Files up and down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nemo_gym_sandbox.testing._box import Box, code_is, equal, expect, marker, pattern, quote, raises
from nemo_gym_sandbox.testing._case import Group

if TYPE_CHECKING:
    from pathlib import Path

GROUP = Group("files")
case = GROUP.case


async def _upload(box: Box, name: str, content: bytes, remote: str, mode: int = 0o644) -> None:
    await box.sandbox.upload(box.local(name, content, mode), remote)


async def _download(box: Box, remote: str) -> Path:
    local = box.local("down")
    await box.sandbox.download(remote, local)
    return local


def _holds(path: Path, want: bytes) -> None:
    equal(path.read_bytes(), want, f"the content of {path.name}")


@case()
async def a_files_content_changes_at_some_size(box: Box) -> None:
    """It comes back as it was."""
    sizes = [0, 1, 4096, 18433, 65536, 65537, (10 << 20) + 3]
    async with box.scratch() as scratch:
        for size in sizes[:-1] if box.backend.remote_files else sizes:
            data = pattern(size)
            await _upload(box, "f", data, f"{scratch}/f")
            await box.bash(f"wc -c <{scratch}/f | tr -d ' '", f"{size}\n")
            _holds(await _download(box, f"{scratch}/f"), data)


@case()
async def a_script_arrives_without_its_right_to_run(box: Box) -> None:
    """Permissions are kept by providers that say so (keeps_file_modes)."""
    keeps = getattr(type(box.provider), "keeps_file_modes", False) is True
    async with box.scratch() as scratch:
        await _upload(box, "run.sh", b"#!/bin/sh\necho ran\n", f"{scratch}/bin/deep/run.sh", 0o755)
        await box.bash(f"{'' if keeps else 'sh '}{scratch}/bin/deep/run.sh", "ran\n")
        if keeps:
            await _upload(box, "s", b"x", f"{scratch}/s", 0o600)
            await box.bash(f"ls -l {scratch}/s | cut -c1-10", "-rw-------\n")


@case()
async def an_odd_name_is_taken_for_syntax(box: Box) -> None:
    """Any name that is text will do."""
    names = [
        "with blank",
        "quote'd",
        'double"d',
        "new\nline",
        "-dash",
        "☕",
        "co:lon",
        "back\\slash",
        "$HOME",
        "*",
        "a;b",
    ]
    async with box.scratch() as scratch:
        for name in (*names, "n" * 200):
            await _upload(box, name, name.encode(), f"{scratch}/{name}")
            await box.bash(f"cat -- {quote(f'{scratch}/{name}')}", name)
            _holds(await _download(box, f"{scratch}/{name}"), name.encode())


@case()
async def a_missing_file_leaves_an_empty_one(box: Box) -> None:
    """It is an error that names the file, and nothing is made."""
    async with box.scratch() as scratch:
        local = box.local("out")
        work = box.sandbox.download(f"{scratch}/nope.txt", local)
        await raises(work, RuntimeError, OSError, saying="nope.txt", what="the download")
        expect(not local.exists(), "a file is left")
        work = box.sandbox.upload(box.local("not-here.txt"), f"{scratch}/up")
        await raises(work, RuntimeError, OSError, saying="not-here.txt", what="the upload")
        code_is(await box.run(f"test -e {scratch}/up"), 1)


@case()
async def a_directory_is_taken_for_a_file(box: Box) -> None:
    """It is an error, and nothing is made."""
    async with box.scratch() as scratch:
        local = box.local("out")
        await raises(box.sandbox.download(scratch, local), RuntimeError, OSError, what="the download of a directory")
        expect(not local.exists(), "something is left")
        work = box.sandbox.upload(box.local("f", b"").parent, f"{scratch}/up")
        await raises(work, RuntimeError, OSError, what="the upload of a directory")
        await box.bash(f"ls {scratch}", "")


@case()
async def a_special_file_hangs_the_download(box: Box) -> None:
    """It is an error."""
    async with box.scratch() as scratch:
        await box.ok(f"mkfifo {scratch}/fifo")
        async with asyncio.timeout(box.deadline_s):
            work = box.sandbox.download(f"{scratch}/fifo", box.local("out"))
            await raises(work, RuntimeError, OSError, what="the download of a pipe")


@case()
async def a_link_is_copied_instead_of_the_file(box: Box) -> None:
    """What it leads to is copied."""
    link = box.local("link")
    link.symlink_to(box.local("real.txt", b"real\n"))
    async with box.scratch() as scratch:
        await box.sandbox.upload(link, f"{scratch}/up.txt")
        await box.bash(f"cat {scratch}/up.txt; test -L {scratch}/up.txt || echo file", "real\nfile\n")
        await box.ok(f"cd {scratch}; echo inside >r.txt; ln -s r.txt l.txt")
        down = await _download(box, f"{scratch}/l.txt")
        _holds(down, b"inside\n")
        expect(not down.is_symlink(), "it is a link")


@case()
async def a_relative_path_begins_elsewhere_than_for_commands(box: Box) -> None:
    """It begins where commands run."""
    name = f"rel-{marker()}"
    await _upload(box, "f", b"hello\n", f"{name}/sub/f.txt")
    await box.bash(f"cat {name}/sub/f.txt", "hello\n")
    _holds(await _download(box, f"{name}/sub/f.txt"), b"hello\n")
    await box.ok(f"rm -rf {name}")


@case()
async def a_longer_file_shines_through_a_shorter_one(box: Box) -> None:
    """What was there is replaced."""
    async with box.scratch() as scratch:
        await _upload(box, "f", pattern(100_000), f"{scratch}/f")
        await _upload(box, "f", b"short", f"{scratch}/f")
        await box.bash(f"cat {scratch}/f; ls {scratch}", "shortf\n")
        local = box.local("out", pattern(100_000))
        await box.sandbox.download(f"{scratch}/f", local)
        _holds(local, b"short")


@case()
async def a_program_that_runs_can_not_be_replaced(box: Box) -> None:
    """It can."""
    mark = marker()
    async with box.scratch() as scratch:
        await box.ok(f"cp $(which sleep) {scratch}/sleep; {scratch}/sleep {mark} >/dev/null 2>&1 </dev/null &")
        await box.wait_sleepers(mark, 1)
        await _upload(box, "f", b"#!/bin/sh\necho new\n", f"{scratch}/sleep", 0o755)
        await box.bash(f"sh {scratch}/sleep", "new\n")
        await box.end_sleepers(mark)


@case()
async def an_impossible_place_is_reported_as_success(box: Box) -> None:
    """It is an error that names the place."""
    async with box.scratch() as scratch:
        await box.ok(f"mkdir {scratch}/d; echo x >{scratch}/file")
        file = box.local("f", b"x")
        for target in (f"{scratch}/d", f"{scratch}/file/below", "/proc/nope/f"):
            work = box.sandbox.upload(file, target)
            await raises(work, RuntimeError, OSError, saying=target, what=f"the upload to {target}")


@case()
async def a_parent_on_this_side_is_missing(box: Box) -> None:
    """It is made."""
    async with box.scratch() as scratch:
        await box.ok(f"echo x >{scratch}/f")
        local = box.local("new") / "deep" / "f"
        await box.sandbox.download(f"{scratch}/f", local)
        _holds(local, b"x\n")


@case()
async def transfers_get_in_each_others_way(box: Box) -> None:
    """Many go at once."""
    async with box.scratch() as scratch:

        async def one(number: int) -> None:
            data = pattern(10_000 + number)
            await _upload(box, "f", data, f"{scratch}/{number % 4}/{number}")
            _holds(await _download(box, f"{scratch}/{number % 4}/{number}"), data)

        async with asyncio.TaskGroup() as group:
            for number in range(min(24, box.backend.max_in_flight)):
                group.create_task(one(number))
