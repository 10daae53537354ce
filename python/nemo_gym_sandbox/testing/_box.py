"""What cases work with: one sandbox, and short ways to say what has to come of a command."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import SandboxExecResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from nemo_gym_sandbox.providers.base import SandboxSpec
    from nemo_gym_sandbox.testing._backend import Backend

T = TypeVar("T")

_markers = count(50_000_000 + time.time_ns() % 10_000_000 * 4)


def marker() -> str:
    """A number to sleep for that tells a process from all others of the machine."""
    return str(next(_markers))


def short(value: object) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def expect(condition: object, message: str) -> None:
    """Fail the case unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def equal(got: object, want: object, what: str) -> None:
    """Fail the case unless both are equal."""
    if got != want:
        raise AssertionError(f"{what} is {short(got)}, want {short(want)}")


class ToldAsLines(SandboxExecResult):
    """A result of a backend that tells output line by line."""


class ToldMerged(SandboxExecResult):
    """A result of a backend that has one channel for all output."""


def told(result: SandboxExecResult, output: str) -> str:
    """What of an output can be in this result."""
    if not isinstance(result, ToldAsLines):
        return output
    return output.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def stdout_is(result: SandboxExecResult, want: str) -> None:
    """Fail the case unless the command succeeded and printed exactly this."""
    code_is(result, 0)
    equal(result.stdout, told(result, want), "stdout")


def printed(result: SandboxExecResult, stdout: str, stderr: str) -> None:
    """Fail the case unless the command wrote this, first to stdout and then to stderr, as far as the backend tells."""
    if isinstance(result, ToldMerged):
        equal(result.stdout, stdout + stderr, "the output")
        return
    equal(result.stdout, told(result, stdout), "stdout")
    said = result.stderr
    if isinstance(result, ToldAsLines) and result.return_code != 0:
        said = (said or "").rpartition("\n")[0]  # without the line more
    equal(said, told(result, stderr), "stderr")


def code_is(result: SandboxExecResult, code: int) -> None:
    """Fail the case unless the command ran and left this code."""
    if result.return_code != code or result.error_type is not None:
        raise AssertionError(f"got {short(result)}, want exit code {code}")


def timed_out(result: SandboxExecResult) -> None:
    """Fail the case unless the command was ended by its timeout."""
    if result.error_type != "timeout" or result.return_code != 125:
        raise AssertionError(f"got {short(result)}, want a timeout")


async def raises(
    work: Awaitable[object], *kinds: type[BaseException], saying: str = "", what: str = "it"
) -> BaseException:
    """Fail the case unless awaiting raises an error of these kinds whose text has something in it."""
    try:
        answer = await work
    except kinds as error:
        expect(saying in str(error), f"{what} raised {error!r}, whose text has no {saying!r}")
        return error
    raise AssertionError(f"{what} gave {short(answer)}, want an error")


def sandbox_processes(text: str, file: str = "cmdline") -> list[int]:
    """This machine's processes whose command line (or environment) holds the text."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / file).read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is somebody else's
                continue
    return found


def pattern(size: int) -> bytes:
    """Data in which a lost, doubled or moved piece shows."""
    import random

    return random.Random(size).randbytes(size)


def text_pattern(size: int) -> str:
    """Text in which a lost, doubled or moved piece shows."""
    lines = "".join(f"{number:07x}\n" for number in range(size // 8 + 1))
    return lines[:size]


class Box:
    """One sandbox under test."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.provider = backend.provider()
        self.spec: SandboxSpec = backend.spec
        self.sandbox = AsyncSandbox(self.provider, self.spec)
        self._folder = tempfile.TemporaryDirectory(prefix="nemo-gym-sandbox-testing-")
        self._boxes: list[Box] = []

    async def start(self, **changes: Any) -> None:
        """Start it, from the spec with some changes."""
        import dataclasses

        if changes:
            self.spec = dataclasses.replace(self.spec, **changes)
        await self.sandbox.start(self.spec)

    def another(self) -> Box:
        """A second one of the same backend, which is closed with this one."""
        box = Box(self.backend)
        self._boxes.append(box)
        return box

    async def close(self) -> None:
        """End what is left."""
        try:
            for box in self._boxes:
                await box.close()
            async with asyncio.timeout(3 * self.deadline_s):
                await self.sandbox.stop()
        finally:
            self._folder.cleanup()

    @property
    def deadline_s(self) -> float:
        """For what should take milliseconds."""
        return self.backend.deadline_s

    def local(self, name: str, content: bytes | None = None, mode: int = 0o644) -> Path:
        """A path on this machine that nothing else uses; with content it is a file."""
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        if content is not None:
            (folder / name).write_bytes(content)
            (folder / name).chmod(mode)
        return folder / name

    # ---- commands

    async def run(self, command: str, **options: Any) -> SandboxExecResult:
        """Run a command line, within the deadline for quick things unless it says otherwise."""
        options.setdefault("timeout_s", self.deadline_s)
        result: Any = await self.sandbox.exec(command, **options)
        expect(isinstance(result, SandboxExecResult), f"exec gave {short(result)}, which is no SandboxExecResult")
        values: dict[str, Any] = {entry.name: getattr(result, entry.name) for entry in fields(SandboxExecResult)}
        if self.backend.as_lines:
            return ToldAsLines(**values)
        return ToldMerged(**values) if self.backend.merged_output else result

    async def ok(self, command: str, **options: Any) -> str:
        """Run a command line that has to succeed; what it printed."""
        result = await self.run(command, **options)
        code_is(result, 0)
        return result.stdout or ""

    async def bash(self, command: str, want: str, **options: Any) -> None:
        """Run a command line that has to print exactly this."""
        stdout_is(await self.run(command, **options), want)

    @asynccontextmanager
    async def scratch(self) -> AsyncGenerator[str]:
        """An empty directory in the sandbox."""
        folder = f"/tmp/testing-{marker()}"
        await self.ok(f"mkdir {folder}")
        try:
            yield folder
        finally:
            await self.ok(f"chmod -R u+rwx {folder}; rm -rf {folder}")

    @asynccontextmanager
    async def running(self, command: str, **options: Any) -> AsyncGenerator[asyncio.Task[SandboxExecResult]]:
        """A command in the background, which is cancelled at the end if it still runs."""
        task = asyncio.create_task(self.run(command, **options))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=self.deadline_s)
            if task.done() and not task.cancelled():
                task.exception()  # seen: what is of interest was awaited

    # ---- processes

    async def sleepers(self, mark: str) -> int:
        """How many processes in the sandbox sleep for the marker.

        The shell drops the zero bytes between arguments, so what a shell was told to run, with a blank, differs.
        """
        printed = await self.ok(
            "n=0; for p in /proc/[0-9]*; do l=; IFS= read -r l <$p/cmdline; "
            f"case $l in *sleep{mark}) n=$((n+1));; esac; done 2>/dev/null; echo $n"
        )
        return int(printed)

    async def wait_sleepers(self, mark: str, want: int) -> None:
        """Wait until as many processes sleep for the marker."""

        async def reached() -> bool:
            return await self.sleepers(mark) == want

        await self.wait(f"{want} processes sleep for {mark}", reached)

    async def end_sleepers(self, mark: str) -> None:
        """Kill those that sleep for the marker, so that the next case begins with none."""
        await self.ok(
            "for p in /proc/[0-9]*; do l=; IFS= read -r l <$p/cmdline; "
            f"case $l in *sleep{mark}) kill -9 ${{p#/proc/}};; esac; done 2>/dev/null; true"
        )
        await self.wait_sleepers(mark, 0)

    async def wait(self, what: str, reached: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a state that nothing announces."""
        end = time.monotonic() + self.deadline_s
        while not await reached():
            expect(time.monotonic() < end, f"it did not happen that {what}")
            await asyncio.sleep(0.02)

    # ---- what is left

    async def leftovers(self) -> set[str]:
        """What the backend's sandboxes consist of now."""
        list_all = self.backend.leftovers
        return set() if list_all is None else await asyncio.to_thread(lambda: set(list_all()))

    async def nothing_more_than(self, before: set[str]) -> None:
        """Wait until nothing exists that did not exist before."""
        end = time.monotonic() + self.deadline_s
        while more := await self.leftovers() - before:
            expect(time.monotonic() < end, f"left behind: {sorted(more)}")
            await asyncio.sleep(0.05)


quote = shlex.quote
