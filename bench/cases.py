"""What is measured. A case takes one side and a running sandbox of it and gives a value for each of its metrics."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import measure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bench.targets import Box, Target

MIB = 1 << 20
LARGE = 64 * MIB


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    label: str
    unit: str
    more_is_better: bool = False


METRICS = {
    "exec": Metric("exec `true`, one after the other", "ms"),
    "cpu": Metric("client CPU per exec, 32 in flight", "ms"),
    "x1": Metric("exec, 1 in flight", "/s", True),
    "x8": Metric("exec, 8 in flight", "/s", True),
    "x32": Metric("exec, 32 in flight", "/s", True),
    "x64": Metric("exec, 64 in flight", "/s", True),
    "lag": Metric("event loop late, p99, 32 in flight", "ms"),
    "collect": Metric("64 MiB of output, collected", "MiB/s", True),
    "collect_rss": Metric("- memory grows by", "MiB"),
    "stream": Metric("64 MiB of output, streamed", "MiB/s", True),
    "stream_rss": Metric("- memory grows by", "MiB"),
    "start": Metric("start to the first exec", "ms"),
    "ready": Metric("- beside the floor's start without an exec", "ms"),
    "start_many": Metric("16 starts at once, each with one exec", "ms"),
    "start_files": Metric("200 small files in the spec: start takes longer by", "ms"),
    "burst": Metric("500 execs at once", "ms"),
    "stop": Metric("stop", "ms"),
    "up_small": Metric("upload 1 KiB", "ms"),
    "down_small": Metric("download 1 KiB", "ms"),
    "up_large": Metric("upload 64 MiB", "MiB/s", True),
    "down_large": Metric("download 64 MiB", "MiB/s", True),
}
"""All metrics, in the order of the table."""


@dataclass(frozen=True)
class Context:
    """What a case may use."""

    target: Target
    box: Box
    seconds: float
    folder: Path


async def _timed(op: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await op()
    return time.perf_counter() - began


async def _median_ms(c: Context, op: Callable[[], Awaitable[object]]) -> float:
    end = time.perf_counter() + c.seconds
    taken = [await _timed(op) for _ in range(3)]
    while time.perf_counter() < end:
        taken.append(await _timed(op))
    return statistics.median(taken) * 1e3


async def exec_one(c: Context) -> dict[str, float]:
    return {"exec": await _median_ms(c, lambda: c.box.exec("true"))}


async def exec_many(c: Context) -> dict[str, float]:
    found: dict[str, float] = {}
    for width in (1, 8, 64):
        done, took = await measure.in_flight(width, c.seconds, lambda: c.box.exec("true"))
        found[f"x{width}"] = done / took
    cpu = measure.cpu_s()
    async with measure.heartbeat() as late:
        done, took = await measure.in_flight(32, c.seconds, lambda: c.box.exec("true"))
    found["x32"] = done / took
    found["cpu"] = (measure.cpu_s() - cpu) / done * 1e3
    found["lag"] = measure.percentile(late, 0.99) * 1e3
    return found


async def output(c: Context) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, read in (("collect", c.box.exec), ("stream", c.box.stream)):
        peak = measure.Peak()
        began = time.perf_counter()
        try:
            size = await read("cat /tmp/large")
        except NotImplementedError:
            continue
        took = time.perf_counter() - began
        if size != LARGE:
            raise RuntimeError(f"{size} of {LARGE} bytes arrived")
        found[name] = LARGE / MIB / took
        # A page is the least that can be seen; a ratio to nothing says nothing.
        found[f"{name}_rss"] = max(peak.growth() / MIB, 0.1)
    return found


async def life(c: Context) -> dict[str, float]:
    began = time.perf_counter()
    box = await c.target.start()
    try:
        made = time.perf_counter() - began
        await box.exec("true")
        started = time.perf_counter() - began
    finally:
        stopped = await _timed(box.stop)
    found = {"start": started * 1e3, "stop": stopped * 1e3}
    if c.target.makes_something:
        # A floor's sandbox is ready for nothing yet: its start is the least that a start can take.
        found["ready"] = (made if c.target.is_floor else started) * 1e3
    return found


async def life_many(c: Context) -> dict[str, float]:
    boxes: list[Box] = []

    async def one() -> None:
        box = await c.target.start()
        boxes.append(box)
        await box.exec("true")

    try:
        took = await _timed(lambda: asyncio.gather(*(one() for _ in range(16))))
    finally:
        await asyncio.gather(*(box.stop() for box in boxes))
    return {"start_many": took * 1e3}


async def life_files(c: Context) -> dict[str, float]:
    took: dict[bool, list[float]] = {False: [], True: []}
    files = {f"/tmp/seed/{n % 10}/{n}": f"file {n}\n" * 50 for n in range(200)}
    # They end after the last has started: ext4 searches the inodes that it freed in the last minutes each time that it
    # makes a file, so sandboxes that end in between would make the next one's files tenfold as dear.
    boxes: list[Box] = []
    try:
        for seeded in (False, True, True, False, False, True):
            began = time.perf_counter()
            boxes.append(await c.target.start(files if seeded else None))
            took[seeded].append(time.perf_counter() - began)
    finally:
        await asyncio.gather(*(box.stop() for box in boxes))
    return {"start_files": (statistics.median(took[True]) - statistics.median(took[False])) * 1e3}


async def burst(c: Context) -> dict[str, float]:
    if c.target.is_floor:
        return {}
    descriptors = measure.descriptors()
    took = await _timed(lambda: asyncio.gather(*(c.box.exec("true") for _ in range(500))))
    deadline = time.perf_counter() + 10
    while measure.descriptors() > descriptors + 1:  # one idle stream may stay
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{measure.descriptors() - descriptors} descriptors are left of 500 execs")
        await asyncio.sleep(0.05)
    return {"burst": took * 1e3}


async def files(c: Context) -> dict[str, float]:
    small, large = c.folder / "small", c.folder / "large"
    back = c.folder / "back"
    found = {
        "up_small": await _median_ms(c, lambda: c.box.upload(small, "small")),
        "down_small": await _median_ms(c, lambda: c.box.download("small", back)),
    }
    for name, op in (
        ("up_large", lambda: c.box.upload(large, "large")),
        ("down_large", lambda: c.box.download("large", back)),
    ):
        found[name] = LARGE / MIB / await _timed(op)
    if await asyncio.to_thread(lambda: back.stat().st_size) != LARGE:
        raise RuntimeError("the file did not come back whole")
    return found


CASES: dict[str, Callable[[Context], Awaitable[dict[str, float]]]] = {
    "exec": exec_one,
    "many": exec_many,
    "output": output,
    "life": life,
    "life_many": life_many,
    "life_files": life_files,
    "burst": burst,
    "files": files,
}
"""All cases, by the name that the command line knows."""


async def prepare(box: Box, folder: Path) -> None:
    """Give a sandbox what the cases expect in it."""
    await box.exec("true")
    await box.upload(folder / "large", "large")


def make_files(folder: Path) -> None:
    """Make the files that are sent."""
    (folder / "small").write_bytes(b"x" * 1024)
    (folder / "large").write_bytes(b"0123456789abcde\n" * (LARGE // 16))
