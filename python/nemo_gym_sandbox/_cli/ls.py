"""List the sandboxes of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox._cli import _backends as backends
from nemo_gym_sandbox._cli._output import RUNTIME_FAILURE, WRONG_USAGE, complain, duration, print_json, print_table
from nemo_gym_sandbox._cli._program import run_verb

if TYPE_CHECKING:
    import argparse

HEAD = ("SANDBOX", "PROVIDER", "STATUS", "AGE", "RUN", "OWNER", "NOTE")


def main(arguments: list[str]) -> int:
    """List them and return the exit status."""
    return run_verb(
        "ls", "Lists the sandboxes that any process made, and whether they can be reaped.", _declare, _run, arguments
    )


def _declare(parser: argparse.ArgumentParser) -> None:
    backends.add_selection(parser)
    parser.add_argument("--json", action="store_true", help="print a list of objects")


async def _run(arguments: argparse.Namespace) -> int:
    problem = backends.unfit(arguments)
    if problem:
        complain(problem)
        return WRONG_USAGE
    found: list[backends.Found] = []
    code = 0
    for name in backends.chosen(arguments):
        try:
            async with backends.opened(name, arguments) as backend:
                found += await backend.list()
        except (RuntimeError, TimeoutError, ValueError) as error:
            if not backends.excuse(error, arguments):
                code = RUNTIME_FAILURE
    found.sort(key=lambda one: one.created_at)
    if arguments.json:
        rows: list[Any] = [one.as_json() for one in found]
        print_json(rows)
    else:
        print_table(HEAD, map(row, found))
    return code


def row(one: backends.Found) -> tuple[str, ...]:
    """A sandbox as a line of the table."""
    owner = f"{one.pid}@{one.host} {one.owner}" if one.pid else one.owner
    status = "files only" if one.leftover else one.status
    return one.sandbox_id, one.provider, status, duration(one.age_s), one.run, owner, one.kept or "can be reaped"
