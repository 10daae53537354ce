"""What terminals cost, each figure beside a terminal of this process that was measured in the same seconds.

    python -m bench.pty [--provider local docker] [--rounds N] [--only echo output sessions]

The floor is what asyncio can do without any sandbox: a program on a terminal that this process made, read with
``loop.add_reader``. Floor and subject alternate in short blocks, the ratio is taken within a pair, and the median over the
pairs is printed, with the range.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
import tty
from collections import deque
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from bench import measure
from nemo_gym_sandbox import AsyncSandbox, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MIB = 1 << 20
ECHO = "stty raw -echo; printf ready; exec cat"
PRINT = "stty raw -echo; printf ready; read x; exec head -c {size} /dev/zero"
OUTPUT_MIB = 64
SESSIONS = 200
KEYS = 200


class Terminal(Protocol):
    """A program on a terminal."""

    async def write(self, data: bytes) -> None: ...

    async def read(self) -> bytes:
        """The next output, ``b""`` at the end."""
        ...

    async def close(self) -> None: ...


class LocalTerminal:
    """A terminal of this process, with a program on it."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._paused = False

    @classmethod
    async def open(cls, command: str) -> LocalTerminal:
        self = cls()
        self._fd, other = os.openpty()
        tty.setraw(other)
        os.set_blocking(self._fd, False)
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)
        return self

    def _readable(self) -> None:
        try:
            chunk = os.read(self._fd, 64 << 10)
        except OSError:  # EIO: nobody holds the other end
            chunk = b""
        self._chunks.append(chunk)
        self._more.set()
        if not chunk or len(self._chunks) >= 16:
            self._loop.remove_reader(self._fd)
            self._paused = True

    async def read(self) -> bytes:
        while not self._chunks:
            self._more.clear()
            await self._more.wait()
        chunk = self._chunks.popleft()
        if self._paused and chunk and not self._chunks:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)
        return chunk

    async def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    async def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        await self._process.wait()  # the loss of its terminal ends it


class Side(Protocol):
    name: str

    async def open(self, command: str) -> Terminal: ...


class Floor:
    name = "a terminal of this process"

    async def open(self, command: str) -> Terminal:
        return await LocalTerminal.open(command)


class Subject:
    def __init__(self, provider: str, sandbox: AsyncSandbox) -> None:
        self.name, self.sandbox = provider, sandbox

    async def open(self, command: str) -> Terminal:
        return await self.sandbox.pty.create(command)


async def until_ready(terminal: Terminal) -> None:
    got = b""
    while not got.endswith(b"ready"):
        chunk = await terminal.read()
        if not chunk:
            raise RuntimeError(f"the terminal ended after {got!r}")
        got += chunk


async def echo(side: Side) -> dict[str, float]:
    """One key at a time, there and back."""
    terminal = await side.open(ECHO)
    await until_ready(terminal)
    waits: list[float] = []
    cpu = measure.cpu_s()
    for number in range(KEYS):
        key = bytes([number % 256])
        began = time.perf_counter()
        await terminal.write(key)
        if await terminal.read() != key:
            raise RuntimeError("something else came back")
        waits.append(time.perf_counter() - began)
    cpu = measure.cpu_s() - cpu
    await terminal.close()
    return {
        "median, ms": median(waits) * 1e3,
        "p99, ms": measure.percentile(waits, 0.99) * 1e3,
        "CPU of this process, us": cpu / KEYS * 1e6,
    }


async def output(side: Side) -> dict[str, float]:
    """A program that prints as fast as it can."""
    size = OUTPUT_MIB * MIB
    terminal = await side.open(PRINT.format(size=size))
    await until_ready(terminal)
    peak, cpu, got = measure.Peak(), time.process_time(), 0
    began = time.perf_counter()
    async with measure.heartbeat() as late:
        await terminal.write(b"\n")
        while chunk := await terminal.read():
            got += len(chunk)
    took = time.perf_counter() - began
    cpu = time.process_time() - cpu
    await terminal.close()
    if got != size:
        raise RuntimeError(f"{got} of {size} bytes came")
    return {
        "time, s": took,
        "CPU of this process, s": cpu,
        "lag of the loop, p99, ms": measure.percentile(late, 0.99) * 1e3,
        "(memory growth, MiB)": peak.growth() / MIB,
    }


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def sessions(side: Side) -> dict[str, float]:
    """Many terminals at once, each of which has echoed a key."""

    async def one() -> Terminal:
        terminal = await side.open(ECHO)
        await until_ready(terminal)
        await terminal.write(b"x")
        if await terminal.read() != b"x":
            raise RuntimeError("something else came back")
        return terminal

    before, began = resident(), time.perf_counter()
    opened: list[Terminal] = []
    for _ in range(SESSIONS // 20):
        opened += await asyncio.gather(*(one() for _ in range(20)))
    took, grown = time.perf_counter() - began, resident() - before
    found = {
        "time for each, ms": took / SESSIONS * 1e3,
        "(memory of this process for each, KiB)": max(grown, 0) / 1024 / SESSIONS,
    }
    if isinstance(side, Subject):
        status = await side.sandbox.exec("grep VmRSS /proc/1/status")
        found["(memory of the sandbox's first process, MiB)"] = int((status.stdout or "x 0").split()[1]) / 1024
    for terminal in opened:
        await terminal.close()
    return found


CASES = {
    "echo": (echo, f"{KEYS} keys, one at a time, there and back"),
    "output": (output, f"{OUTPUT_MIB} MiB printed to a terminal"),
    "sessions": (sessions, f"{SESSIONS} terminals"),
}


@contextlib.asynccontextmanager
async def subject(provider: str, image: str) -> AsyncIterator[Subject]:
    async with AsyncSandbox({provider: {}}, SandboxSpec(image=None if provider == "local" else image)) as sandbox:
        await sandbox.start()
        yield Subject(provider, sandbox)


async def compare(name: str, provider: str, image: str, rounds: int) -> None:
    case, title = CASES[name]
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    async with subject(provider, image) as ours:
        floor: Any = Floor()
        await case(floor)
        await case(ours)  # both are warm
        for number in range(rounds):
            if number % 2:
                mine = await case(ours)
                pairs.append((await case(floor), mine))
            else:
                base = await case(floor)
                pairs.append((base, await case(ours)))
    print(f"{provider}: {title}, beside {Floor.name}")
    for metric in pairs[0][1]:
        mine = [ours[metric] for _, ours in pairs]
        base = [floor[metric] for floor, _ in pairs if metric in floor]
        if metric.startswith("("):  # of which a ratio would say nothing
            print(f"    {metric}: {median(mine):.2f}" + (f" against {median(base):.2f}" if base else ""))
            continue
        ratios = [a / b for a, b in zip(mine, base, strict=True)]
        print(
            f"    {metric}: {median(mine):.3g} against {median(base):.3g}, "
            f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    if name == "output":
        speed = [OUTPUT_MIB / ours["time, s"] for _, ours in pairs]
        print(
            f"    {median(speed):.0f} MiB/s against {median(OUTPUT_MIB / floor['time, s'] for floor, _ in pairs):.0f}"
        )


async def run(arguments: argparse.Namespace) -> None:
    print(measure.machine())
    for provider in arguments.provider:
        for name in arguments.only:
            await compare(name, provider, arguments.image, arguments.rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pty", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", nargs="+", default=["local", "docker"], choices=["local", "docker"])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--image", default="lab/busybox:1")
    asyncio.run(run(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
