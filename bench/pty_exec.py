"""Many short commands in terminals, and each result has to be whole: all the output, and the right exit code.

    python -m bench.pty_exec [--provider local docker] [--mode oneshot session] [--commands N] [--seed N]

A one-shot command has a terminal of its own, which is where a tail gets lost most easily: the process ends right after its
last byte. In session mode the commands are typed into one live shell.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from bench import measure
from nemo_gym_sandbox import AsyncSandbox, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nemo_gym_sandbox import SandboxPtySession

SIZES = (0, 1, 4095, 4096, 65537, 1 << 20)
WORD = "0123456789abcde"  # 15 letters, so that a piece that is missing or doubled shifts what comes behind it
SIDE_BY_SIDE = 4


class Tally:
    """What came of the commands."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.took: dict[int, list[float]] = {size: [] for size in SIZES}

    async def run(self, sandbox: AsyncSandbox, session: SandboxPtySession | None, size: int, code: int) -> None:
        """Run one command and compare."""
        command = f"yes {WORD} | tr -d '\\n' | head -c {size}; "
        command += f"exit {code}" if session is None else f"(exit {code})"
        began = time.perf_counter()
        # A shaping argument has a terminal made for the command alone.
        result = await sandbox.pty.exec(command, session=session, rows=24 if session else 25)
        self.took[size].append(time.perf_counter() - began)
        out = result.stdout or ""
        expected = (WORD * (size // len(WORD) + 1))[:size]
        if (out, result.return_code, result.error_type) != (expected, code, None):
            self.wrong.append(
                f"{size} bytes and code {code} wanted; {len(out)} bytes, {'equal' if out == expected else 'different'}, "
                f"code {result.return_code}, error type {result.error_type}"
            )


def drawn(commands: int, seed: str) -> Iterator[tuple[int, int]]:
    """Sizes, equally often, and codes."""
    randomly = random.Random(seed)
    sizes = [SIZES[number % len(SIZES)] for number in range(commands)]
    randomly.shuffle(sizes)
    return ((size, randomly.randrange(125)) for size in sizes)


async def one_shot(sandbox: AsyncSandbox, commands: Iterator[tuple[int, int]], tally: Tally) -> None:
    """Some commands at a time, each in a terminal of its own."""

    async def work() -> None:
        for size, code in commands:
            await tally.run(sandbox, None, size, code)

    async with asyncio.TaskGroup() as group:
        for _ in range(SIDE_BY_SIDE):
            group.create_task(work())


async def in_session(sandbox: AsyncSandbox, commands: Iterator[tuple[int, int]], tally: Tally) -> None:
    """One command after the other in a shell."""
    async with await sandbox.pty.create() as session:
        for size, code in commands:
            await tally.run(sandbox, session, size, code)


MODES = {"oneshot": one_shot, "session": in_session}


async def run(given: argparse.Namespace, provider: str) -> int:
    """All modes in one sandbox; gives how many results were wrong."""
    wrong = 0
    spec = SandboxSpec(image=None if provider == "local" else given.image)
    async with AsyncSandbox({provider: {}}, spec) as sandbox:
        await sandbox.start()
        for mode in given.mode:
            tally = Tally()
            began = time.monotonic()
            await MODES[mode](sandbox, drawn(given.commands, f"{given.seed}/{provider}/{mode}"), tally)
            done = sum(map(len, tally.took.values()))
            print(
                f"{provider}, {mode}: {done - len(tally.wrong)} of {given.commands} right in {time.monotonic() - began:.0f} s; "
                + ", ".join(f"{size} B {median(took) * 1e3:.0f} ms" for size, took in tally.took.items() if took),
                flush=True,
            )
            for line in tally.wrong[:20]:
                print("    " + line)
            wrong += given.commands - done + len(tally.wrong)
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run, compare: exit status 1 when a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.pty_exec", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", nargs="+", default=["local", "docker"], choices=["local", "docker"])
    parser.add_argument("--image", default="lab/busybox:1")
    parser.add_argument("--mode", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--commands", type=int, default=2000, help="for each provider and mode (default: 2000)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args(argv)
    print(measure.machine())
    print(f"seed {given.seed}", flush=True)
    return int(sum(asyncio.run(run(given, provider)) for provider in given.provider) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
