"""End the sandboxes that killed processes left."""

from __future__ import annotations

import argparse
import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from nemo_gym_sandbox._cli import _backends as backends
from nemo_gym_sandbox._cli._output import RUNTIME_FAILURE, WRONG_USAGE, complain, print_json, print_table
from nemo_gym_sandbox._cli._program import run_verb

AT_ONCE = 16
"""How many sandboxes are ended at the same time."""

SWEEPS = 3
"""How often the backend is looked through: a killed process may have requests under way that make one more sandbox."""


DESCRIPTION = """
Ends sandboxes whose process on this machine is dead, and those that outlived their ttl, and removes all of them. Sandboxes
that were handed over to another process (serialized) are kept for their handover time and while somebody uses them; those
of processes that can't be seen from here are kept as well. On an OpenSandbox server all sandboxes and snapshots of the run
that --run-id names are ended.
"""


def main(arguments: list[str]) -> int:
    """Reap them and return the exit status."""
    return run_verb("reap", DESCRIPTION, _declare, _run, arguments)


def _declare(parser: argparse.ArgumentParser) -> None:
    backends.add_selection(parser)
    parser.add_argument(
        "--older-than", metavar="S", type=_seconds, default=0.0, help="only those made S seconds ago or earlier"
    )
    parser.add_argument("--all", action="store_true", help="also those that are in use or may be")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be ended")
    parser.add_argument("--json", action="store_true", help="print an object: reaped, kept, failed")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


@dataclass
class Outcome:
    """What became of the sandboxes that the arguments choose, by id."""

    reaped: dict[str, backends.Found] = field(default_factory=dict[str, backends.Found])
    kept: dict[str, backends.Found] = field(default_factory=dict[str, backends.Found])
    failed: dict[str, tuple[backends.Found, str]] = field(default_factory=dict[str, tuple[backends.Found, str]])
    broken: bool = False
    """A backend could not be asked."""


async def _run(arguments: argparse.Namespace) -> int:
    problem = backends.unfit(arguments)
    if not problem and arguments.provider in backends.REMOTE and not arguments.run_id:
        problem = f"reap --provider {arguments.provider} needs --run-id: others use the server too"
    if problem:
        complain(problem)
        return WRONG_USAGE
    outcome = Outcome()
    for name in backends.chosen(arguments):
        try:
            async with backends.opened(name, arguments) as backend:
                await _clear(backend, arguments, outcome)
        except (RuntimeError, TimeoutError, ValueError) as error:
            outcome.broken |= not backends.excuse(error, arguments)
    _report(outcome, arguments)
    return RUNTIME_FAILURE if outcome.failed or outcome.broken else 0


async def _clear(backend: backends.Backend, arguments: argparse.Namespace, outcome: Outcome) -> None:
    for sweep in range(SWEEPS):
        doomed: list[backends.Found] = []
        for one in await backend.list():
            if one.age_s < arguments.older_than:
                continue
            if one.kept and not arguments.all:
                outcome.kept[one.sandbox_id] = one
            elif one.sandbox_id not in outcome.reaped or not one.leftover:
                doomed.append(one)
        if arguments.dry_run:
            outcome.reaped.update({one.sandbox_id: one for one in doomed})
            return
        if not doomed or (sweep > 0 and all(one.sandbox_id in outcome.failed for one in doomed)):
            break
        # What is left over goes first: a snapshot is known by its sandbox. What a sandbox still held follows it.
        leftover = [one for one in doomed if one.leftover]
        await _end_all(backend, leftover, outcome)
        await _end_all(backend, [one for one in doomed if not one.leftover], outcome)
        await _end_all(backend, [one for one in leftover if one.sandbox_id in outcome.failed], outcome)
    await backend.tidy()


async def _end_all(backend: backends.Backend, doomed: list[backends.Found], outcome: Outcome) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_end(backend, one, gate, outcome) for one in doomed))


async def _end(backend: backends.Backend, one: backends.Found, gate: asyncio.Semaphore, outcome: Outcome) -> None:
    async with gate:
        try:
            await backend.reap(one.sandbox_id)
        except (OSError, RuntimeError, TimeoutError, ValueError) as error:
            outcome.failed[one.sandbox_id] = (one, str(error))
        else:
            outcome.failed.pop(one.sandbox_id, None)
            outcome.reaped[one.sandbox_id] = one


def _report(outcome: Outcome, arguments: argparse.Namespace) -> None:
    for one, why in outcome.failed.values():
        complain(f"{one.provider} sandbox {one.sandbox_id} was not reaped: {why}")
    if arguments.json:
        answer: dict[str, Any] = {
            "dry_run": arguments.dry_run,
            "reaped": [one.as_json() for one in outcome.reaped.values()],
            "kept": [one.as_json() for one in outcome.kept.values()],
            "failed": [{**one.as_json(), "error": why} for one, why in outcome.failed.values()],
        }
        print_json(answer)
        return
    done = "would be reaped" if arguments.dry_run else "reaped"
    rows = [(one.sandbox_id, one.provider, one.run, done) for one in outcome.reaped.values()]
    rows += [(one.sandbox_id, one.provider, one.run, "failed") for one, _ in outcome.failed.values()]
    rows += [(one.sandbox_id, one.provider, one.run, f"kept: {one.kept}") for one in outcome.kept.values()]
    if rows:
        print_table(("SANDBOX", "PROVIDER", "RUN", "RESULT"), rows)
    else:
        complain("nothing to reap")
