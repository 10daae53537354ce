"""The command line: runs the cases in turns and prints the table."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import cases, measure, targets

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = "nemo_gym_sandbox"

Values = dict[str, list[float]]
"""One value for each block, by metric."""


async def _measure(sides: Sequence[targets.Target], names: Sequence[str], blocks: int, seconds: float) -> list[Values]:
    """Measure all sides in turns; gives one table of values for each side."""
    found: list[Values] = [{} for _ in sides]
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-files-")))
        await asyncio.to_thread(cases.make_files, folder)
        contexts: list[cases.Context] = []
        for side in sides:
            stack.callback(side.close)
            box = await side.start()
            stack.push_async_callback(box.stop)
            await cases.prepare(box, folder)
            contexts.append(cases.Context(side, box, seconds, folder))
        for block in range(blocks):
            for name in names:
                # Whoever comes first in a block comes last in the next.
                order = range(len(sides)) if block % 2 == 0 else reversed(range(len(sides)))
                for i in order:
                    for metric, value in (await cases.CASES[name](contexts[i])).items():
                        found[i].setdefault(metric, []).append(value)
            print(f"block {block + 1} of {blocks} done", file=sys.stderr)
    return found


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ours: list[float], other: list[float], more_is_better: bool) -> str:
    """How many times better ours is: the median over the blocks, and the range."""
    ratios = [a / b if more_is_better else b / a for a, b in zip(ours, other, strict=True)]
    return f"**{statistics.median(ratios):.2f}x** ({min(ratios):.2f} to {max(ratios):.2f})"


def table(sides: Sequence[targets.Target], found: Sequence[Values]) -> list[str]:
    """The rows in Markdown. The first side is compared with each other one."""
    names = [s.name for s in sides]
    if len(set(names)) < len(names):
        names = [f"{n} ({i + 1})" for i, n in enumerate(names)]
    head = ["operation", *names, *(f"better than {n}" for n in names[1:])]
    rows = [head, ["---"] * len(head)]
    for key, metric in cases.METRICS.items():
        if key not in found[0]:
            continue
        row = [metric.label]
        row += [f"{_number(statistics.median(f[key]))} {metric.unit}" if key in f else "-" for f in found]
        row += [_ratio(found[0][key], f[key], metric.more_is_better) if key in f else "-" for f in found[1:]]
        rows.append(row)
    return [f"| {' | '.join(r)} |" for r in rows]


async def run(args: argparse.Namespace) -> str:
    """Measure as the arguments say; gives the report."""
    report = [f"Machine: {measure.machine()}.", f"{args.blocks} blocks; ratios are medians over the blocks (range)."]
    for provider in args.provider:
        config: dict[str, Any] = json.loads(args.config).get(provider, {})
        sides: list[targets.Target] = [
            targets.Api(PACKAGE, provider, args.image, config),
            targets.floor(provider, args.image),
        ]
        if args.peer:
            sides.append(targets.Api(args.peer, provider, args.image, {}))
        found = await _measure(sides, args.cases, args.blocks, args.seconds)
        report += ["", f"### {provider}", "", *table(sides, found)]
    return "\n".join(report) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").strip())
    parser.add_argument("--provider", nargs="+", default=["docker", "local"], choices=["docker", "local"])
    parser.add_argument("--cases", nargs="+", default=list(cases.CASES), choices=list(cases.CASES))
    parser.add_argument("--blocks", type=int, default=5, help="how often all sides take their turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each repeated operation is measured")
    parser.add_argument("--image", default="lab/busybox:1", help="image for docker: a shell and the usual programs")
    parser.add_argument("--config", default="{}", help="JSON: configuration of our providers, by name")
    parser.add_argument("--peer", help="a module with the same API to measure too")
    parser.add_argument("--output", type=Path, help="write the report to this file as well")
    args = parser.parse_args(argv)
    report = asyncio.run(run(args))
    print(report, end="")
    if args.output:
        args.output.write_text(report)
    return 0
