"""Measuring this process: time, processor time, memory and how long the event loop stands still."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence


def cpu_s() -> float:
    """Processor seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def percentile(values: Sequence[float], p: float) -> float:
    """The value that p of 1 of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(p * len(ordered)) - 1)]


class Peak:
    """How far this process's resident memory grew, in bytes, between its making and ``growth()``."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def growth(self) -> int:
        return self._read("VmHWM") - self._before

    @staticmethod
    def _read(field: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
        raise RuntimeError(f"/proc/self/status has no {field}")


@contextlib.asynccontextmanager
async def heartbeat(interval_s: float = 0.001) -> AsyncIterator[list[float]]:
    """Collect, while the block runs, by how many seconds each beat of the loop came late."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            due = time.perf_counter() + interval_s
            await asyncio.sleep(interval_s)
            late.append(time.perf_counter() - due)

    task = asyncio.create_task(beat())
    try:
        yield late
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def in_flight(width: int, seconds: float, op: Callable[[], Awaitable[object]]) -> tuple[int, float]:
    """Keep ``width`` operations in flight for some time; gives how many ended and how many seconds that took."""
    done, began = 0, time.perf_counter()

    async def worker() -> None:
        nonlocal done
        while True:
            await op()
            done += 1
            if time.perf_counter() - began >= seconds:
                return

    await asyncio.gather(*(worker() for _ in range(width)))
    return done, time.perf_counter() - began


def machine() -> str:
    """One line about where this ran."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f}"
    )


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
