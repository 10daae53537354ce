"""What sandboxes of an OpenSandbox server cost, beside the official SDK and a bare socket, on the public server.

    python -m bench.opensandbox [--only exec many echo idle] [--sandboxes N] [--rounds N] [--output FILE]

It starts the public server with our daemon in its sandboxes (needs a container engine, and ``./build.sh lib``). Each side is
a process of its own that is connected to the same sandboxes, without the server in between; all take turns in short
blocks, the ratio to the SDK is taken within a block, and the median over the blocks is printed, with the range. The floor
is what blocking sockets need that do nothing else. ``idle`` is measured on the stand-in server, and alone: it is memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from bench import measure  # noqa: E402 - behind the path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IN_FLIGHT = 256
IDLE = 1000

CASES = {
    "exec": "`true`, one at a time, directly",
    "many": f"`true`, {IN_FLIGHT} in flight",
    "echo": "a key of a terminal, there and back",
}
MORE_IS_BETTER = {"per second"}
SIDES = ("ours", "sdk", "floor")


class Program:
    """A program that is told and answers in lines of JSON, and ends with its input."""

    def __init__(self, *argv: str | Path) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "python")])
        self._process = subprocess.Popen(
            [str(a) for a in argv],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} has ended")
        return line

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self.hear())

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def program(*argv: str | Path) -> Iterator[Program]:
    running = Program(*argv)
    try:
        yield running
    finally:
        running.close()


async def make(about: dict[str, Any], count: int) -> list[str]:
    """Make sandboxes, a few at a time; gives their ids. They are removed with the server."""
    from nemo_gym_sandbox.providers.base import SandboxSpec
    from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

    provider = OpenSandboxProvider(connection={"domain": about["url"], "api_key": about["api_key"]})
    turns = asyncio.Semaphore(4)

    async def one() -> str:
        async with turns:
            return str((await provider.create(SandboxSpec(image=about["image"], ttl_s=3600))).sandbox_id)

    ids = await asyncio.gather(*(one() for _ in range(count)))
    await provider.aclose()
    return ids


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def rows(case: str, blocks: Sequence[dict[str, dict[str, float]]]) -> list[str]:
    """Of each metric the medians, and how many times better ours is than the SDK's."""
    lines: list[str] = []
    for metric in blocks[0]["ours"]:
        mine, theirs, floor = ([block[side][metric] for block in blocks] for side in SIDES)
        ratios = [a / b if metric in MORE_IS_BETTER else b / a for a, b in zip(mine, theirs, strict=True)]
        better = f"**{median(ratios):.2f}x** ({min(ratios):.2f} to {max(ratios):.2f})"
        medians = " | ".join(number(median(values)) for values in (mine, theirs, floor))
        lines.append(f"| {CASES[case]}: {metric} | {medians} | {better} |")
    return lines


def compare(names: Sequence[str], about: dict[str, Any], ids: list[str], rounds: int, seconds: float) -> list[str]:
    """Measure all sides in turns; gives the rows of a table."""
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        sides: dict[str, Program] = {}
        for name in SIDES:
            python = about["python"] if name == "sdk" else sys.executable
            sides[name] = stack.enter_context(program(python, "-m", "bench.opensandbox_side", name))
            sides[name].ask(url=about["url"], api_key=about["api_key"], ids=ids)
        for case in names:
            for side in sides.values():
                side.ask(case=case, seconds=seconds, in_flight=IN_FLIGHT)  # all are warm
            blocks: list[dict[str, dict[str, float]]] = []
            for block in range(rounds):
                # Whoever comes first in a block comes last in the next.
                order = list(sides) if block % 2 == 0 else list(reversed(sides))
                blocks.append(
                    {name: sides[name].ask(case=case, seconds=seconds, in_flight=IN_FLIGHT) for name in order}
                )
            found += rows(case, blocks)
            print(f"{case} done", file=sys.stderr)
    return found


def idle() -> str:
    """How much memory many idle sandboxes take in the process that holds them, while their lives are prolonged."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        standin = Path(folder) / "serve"
        subprocess.run(["go", "build", "-o", standin, "./tests/standins/opensandbox/serve"], cwd=ROOT, check=True)
        with (
            program(standin) as server,
            program(sys.executable, "-m", "bench.opensandbox_side", "ours") as ours,
        ):
            url, key = server.hear().split()
            ours.ask(url=url, api_key=key, ids=[])
            got = ours.ask(case="idle", count=IDLE)
    return (
        f"{IDLE} idle sandboxes on the stand-in server, each renewed every {got['interval_s']:g} s: this process grew by "
        f"**{got['grown'] / 2**20:.1f} MiB**, and used {got['cpu_s_per_s'] * 100:.1f} % of a core."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.opensandbox", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*CASES, "idle"], choices=[*CASES, "idle"])
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each block of a case is measured")
    parser.add_argument("--output", type=Path, help="write the report to this file as well")
    args = parser.parse_args(argv)
    report = [f"Machine: {measure.machine()}.", ""]
    if names := [name for name in args.only if name != "idle"]:
        with program(sys.executable, ROOT / "tests" / "testenv" / "opensandbox" / "serve.py") as server:
            about = json.loads(server.hear())
            ids = asyncio.run(make(about, args.sandboxes))
            report += [
                f"{args.rounds} blocks over {len(ids)} sandboxes; ratios are medians over the blocks (range).",
                "",
                "| | ours | SDK, or aiohttp for terminals | floor | better than the SDK |",
                "| --- | --- | --- | --- | --- |",
                *compare(names, about, ids, args.rounds, args.seconds),
            ]
    if "idle" in args.only:
        report += ["", idle()]
    text = "\n".join(report) + "\n"
    print(text, end="")
    if args.output:
        args.output.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
