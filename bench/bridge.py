"""What the border between asyncio and the library costs, each figure beside a floor that was measured in the same seconds.

    python bench/bridge.py [--rounds N] [--only noop,heartbeat,collect,stream,cancel]

The machine's load changes by the second, so floor and subject alternate in short blocks, the ratio is taken within a
pair, and the median over the pairs is printed. Needs nothing but the built library: commands run in the provider without
processes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from typing import TYPE_CHECKING

from nemo_gym_sandbox._core import codec
from nemo_gym_sandbox._core.loop import running_bridge
from nemo_gym_sandbox._core.native import NativeProvider
from nemo_gym_sandbox.providers.base import SandboxHandle, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = 1 << 20
BUSY = 4


class Mem(NativeProvider):
    name = "mem"


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def percentile(values: list[float], part: float) -> float:
    values = sorted(values)
    return values[min(int(len(values) * part), len(values) - 1)]


class Heartbeat:
    """How late a loop comes back from short sleeps."""

    def __init__(self, every_s: float = 0.002) -> None:
        self.late_ms: list[float] = []
        self._every = every_s

    async def __aenter__(self) -> Heartbeat:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _beat(self) -> None:
        while True:
            due = time.perf_counter() + self._every
            await asyncio.sleep(self._every)
            self.late_ms.append((time.perf_counter() - due) * 1000)


async def noop(rounds: int, box: tuple[Mem, SandboxHandle]) -> None:
    """No-ops, 1,000 in flight, beside futures that the loop itself resolves."""
    bridge, loop = running_bridge(), asyncio.get_running_loop()
    count = 1000

    async def resolved_by_loop() -> None:
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future

    async def floor() -> None:
        await asyncio.gather(*(resolved_by_loop() for _ in range(count)))

    async def subject() -> None:
        await asyncio.gather(*(bridge.call(codec.NOOP) for _ in range(count)))

    async def cost(what: Callable[[], Awaitable[None]]) -> float:
        begin = time.process_time()
        await what()
        return (time.process_time() - begin) / count * 1e6

    await subject()
    pairs = [(await cost(floor), await cost(subject)) for _ in range(rounds * 20)]
    peak = threads()
    ours, theirs = [ours for _, ours in pairs], [floor for floor, _ in pairs]
    print(f"no-op, {count} in flight: {median(o / f for f, o in pairs):.1f}x the CPU of a future of asyncio alone")
    print(
        f"    CPU per op, all threads: median {median(ours):.1f} us (best {min(ours):.1f}), floor {median(theirs):.1f} ({min(theirs):.1f})"
    )
    print(f"    threads of the process: {peak}")

    waits = []
    for _ in range(rounds * 100):
        begin = time.perf_counter()
        await bridge.call(codec.NOOP)
        waits.append((time.perf_counter() - begin) * 1e6)
    print(f"no-op, one at a time: median {median(waits):.0f} us (best {min(waits):.0f})")


def busy_processes() -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(BUSY)]


async def heartbeat(rounds: int, box: tuple[Mem, SandboxHandle]) -> None:
    """A loop that runs no-ops, beside goroutines of the library that are busy and beside processes that are."""
    provider, handle = box
    bridge = running_bridge()

    async def beat(seconds: float) -> tuple[float, float]:
        end = time.perf_counter() + seconds
        took: list[float] = []
        async with Heartbeat() as heart:
            while time.perf_counter() < end:
                begin = time.perf_counter()
                await bridge.call(codec.NOOP)
                took.append((time.perf_counter() - begin) * 1000)
                await asyncio.sleep(0.001)
        return percentile(heart.late_ms, 0.99), percentile(took, 0.99)

    async def beside_goroutines() -> tuple[float, float]:
        busy = [asyncio.create_task(provider.exec(handle, "spin 1000")) for _ in range(BUSY)]
        await asyncio.sleep(0.1)
        result = await beat(1.5)
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
        return result

    async def beside_processes() -> tuple[float, float]:
        busy = busy_processes()
        await asyncio.sleep(0.1)
        try:
            return await beat(1.5)
        finally:
            for process in busy:
                process.kill()
                process.wait()

    pairs = [(await beside_processes(), await beside_goroutines()) for _ in range(rounds)]
    ratio = median(ours[0] / floor[0] for floor, ours in pairs)
    latency = median(ours[1] / floor[1] for floor, ours in pairs)
    print(f"heartbeat (p99 lateness) beside {BUSY} busy goroutines: {ratio:.2f}x of that beside {BUSY} busy processes")
    print(
        f"    median over rounds: {median(o[0] for _, o in pairs):.2f} ms against {median(f[0] for f, _ in pairs):.2f} ms"
    )
    print(
        f"    no-op (p99) meanwhile: {latency:.2f}x; {median(o[1] for _, o in pairs):.2f} ms against {median(f[1] for f, _ in pairs):.2f} ms"
    )


async def collect(rounds: int, box: tuple[Mem, SandboxHandle]) -> None:
    """A collected output of 64 MiB, beside joining and decoding the same bytes in Python."""
    provider, handle = box
    size = 64 * MIB
    block = b"y\n" * (32 << 10)

    async def floor() -> None:
        parts = []
        for _ in range(size // len(block)):
            parts.append(bytes(bytearray(block)))
        text = b"".join(parts).decode("utf-8", "replace")
        assert len(text) == size

    async def subject() -> None:
        result = await provider.exec(handle, f"yes {size}")
        assert len(result.stdout or "") == size

    async def timed(what: Callable[[], Awaitable[None]]) -> float:
        begin = time.perf_counter()
        await what()
        return time.perf_counter() - begin

    async def watched() -> tuple[float, float]:
        before, high = resident(), 0

        async def watch() -> None:
            nonlocal high
            while True:
                high = max(high, resident())
                await asyncio.sleep(0)

        async with Heartbeat() as heart:
            watcher = asyncio.create_task(watch())
            result = await provider.exec(handle, f"yes {size}")
            high = max(high, resident())
            watcher.cancel()
        assert len(result.stdout or "") == size
        return (high - before) / size, max(heart.late_ms)

    pairs, grown, stalls = [], [], []
    for _ in range(rounds):
        pairs.append((await timed(floor), await timed(subject)))
        growth, stall = await watched()
        grown.append(growth)
        stalls.append(stall)
    print(
        f"collect 64 MiB: {median(o / f for f, o in pairs):.2f}x the time of joining and decoding them in Python alone"
    )
    print(
        f"    {median(64 / o for _, o in pairs):.0f} MiB/s; peak memory growth {median(grown):.2f}x of the result; worst stall {median(stalls):.1f} ms"
    )


def filled_pipe(size: int) -> tuple[io.FileIO, Callable[[], None]]:
    """A pipe's end to read from, and a function that writes size bytes into the other."""
    read, write = os.pipe()
    block = b"y\n" * (32 << 10)

    def fill() -> None:
        with open(write, "wb", buffering=0) as pipe:
            for _ in range(size // len(block)):
                left = memoryview(block)
                while left:
                    left = left[pipe.write(left) :]

    return io.FileIO(read, "rb"), fill


async def stream(rounds: int, box: tuple[Mem, SandboxHandle]) -> None:
    """256 MiB to a callback, beside an asyncio pipe that carries them from a thread."""
    provider, handle = box
    size = 256 * MIB

    async def subject() -> tuple[float, float]:
        got = 0

        def take(chunk: bytes) -> None:
            nonlocal got
            got += len(chunk)

        begin = time.process_time()
        async with Heartbeat() as heart:
            await provider.exec_stream(handle, f"yes {size}", on_stdout=take)
        assert got == size
        return time.process_time() - begin, max(heart.late_ms)

    async def floor() -> tuple[float, float]:
        source, fill = filled_pipe(size)
        begin = time.process_time()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=256 << 10)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        filling = loop.run_in_executor(None, fill)
        got = 0
        async with Heartbeat() as heart:
            while chunk := await reader.read(64 << 10):
                got += len(chunk)
        await filling
        transport.close()
        assert got == size
        return time.process_time() - begin, max(heart.late_ms)

    pairs = [(await floor(), await subject()) for _ in range(rounds)]
    print(f"stream 256 MiB: {median(o[0] / f[0] for f, o in pairs):.2f}x the CPU of a pipe and a StreamReader")
    print(
        f"    {median(256 / o[0] for _, o in pairs):.0f} MiB per CPU second; worst stall {median(o[1] for _, o in pairs):.1f} ms against {median(f[1] for f, _ in pairs):.1f} ms"
    )


async def cancel(rounds: int, box: tuple[Mem, SandboxHandle]) -> None:
    """From cancelling a task to its end, which is the end of its command."""
    provider, handle = box
    waits = []
    for _ in range(rounds * 20):
        task = asyncio.create_task(provider.exec(handle, "sleep 1000"))
        await asyncio.sleep(0.005)
        begin = time.perf_counter()
        task.cancel()
        await asyncio.wait([task])
        waits.append((time.perf_counter() - begin) * 1000)
    print(f"cancel to end: median {median(waits):.2f} ms, p99 {percentile(waits, 0.99):.2f} ms")


CASES = {case.__name__: case for case in (noop, heartbeat, collect, stream, cancel)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES), help="comma separated")
    arguments = parser.parse_args()
    provider = Mem({})
    handle = await provider.create(SandboxSpec())
    for name in arguments.only.split(","):
        await CASES[name](arguments.rounds, (provider, handle))
    await provider.close(handle)
    await provider.aclose()


if __name__ == "__main__":
    asyncio.run(main())
