"""Run the conformance cases against providers and print a table of cases and providers."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.testing._known import backend, with_differences
from nemo_gym_sandbox.testing._runner import cases, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_gym_sandbox.testing._backend import Backend
    from nemo_gym_sandbox.testing._case import Case
    from nemo_gym_sandbox.testing._runner import Outcome

_DIFFERENT = "-"  # the backend declares a difference that leaves the case without a meaning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 0 when every case passed, 1 when one failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m nemo_gym_sandbox.testing", description=__doc__)
    parser.add_argument(
        "--provider",
        action="append",
        required=True,
        metavar="NAME|JSON",
        help='a name, or {"name": {configuration}}; more than one become columns',
    )
    parser.add_argument("--image", help="the image of sandboxes")
    parser.add_argument("--differs", action="append", default=[], metavar="NAME", help="declare a difference")
    parser.add_argument("--case", action="append", metavar="PATTERN", help="only cases of this name (*, ?)")
    parser.add_argument("--in-flight", type=int, metavar="N", help="commands at once in the concurrency cases")
    parser.add_argument("--slow", type=float, metavar="FACTOR", help="multiplies all deadlines")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell of each case on stderr as it ends")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    given = parser.parse_args(arguments)
    try:
        backends = [_backend(text, given) for text in given.provider]
    except ValueError as error:
        parser.error(str(error))
    patterns: list[str] = given.case or ["*"]
    chosen = [case for case in cases() if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
    if not chosen:
        parser.error(f"no case is named {' or '.join(patterns)}")
    outcomes = asyncio.run(_run_all(backends, chosen, given.verbose))
    sys.stdout.write(_as_json(outcomes) if given.json else _as_table(backends, chosen, outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _backend(text: str, given: argparse.Namespace) -> Backend:
    config: Any = {text: {}}
    if text.lstrip().startswith("{"):
        config = json.loads(text)
    if not isinstance(config, Mapping) or len(cast("Mapping[str, Any]", config)) != 1:
        raise ValueError(f"a provider is a name or a mapping of one name to its configuration, not {text}")
    made = with_differences(
        backend(cast("Mapping[str, Any]", config), spec=SandboxSpec(image=given.image), name=text), given.differs
    )
    if given.in_flight is not None:
        made = replace(made, max_in_flight=given.in_flight)
    return made if given.slow is None else replace(made, slow=given.slow)


async def _run_all(backends: Sequence[Backend], chosen: Sequence[Case], verbose: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for under_test in backends:
        async for outcome in run(under_test, chosen):
            outcomes.append(outcome)
            if verbose:
                word = "ok" if outcome.passed else "FAIL"
                sys.stderr.write(f"{word:<5}{outcome.took_s:6.1f} s  {under_test.name}: {outcome.case.name}\n")
                sys.stderr.flush()
    return outcomes


def _as_table(backends: Sequence[Backend], chosen: Sequence[Case], outcomes: Sequence[Outcome]) -> str:
    came = {(outcome.case.name, outcome.backend.name): "ok" if outcome.passed else "FAIL" for outcome in outcomes}
    names = [backend.name for backend in backends]
    first = max(len(case.name) for case in chosen)
    widths = [max(len(name), 4) for name in names]
    lines = [_line("case", first, names, widths)]
    for case in chosen:
        cells = [came.get((case.name, name), _DIFFERENT) for name in names]
        lines.append(_line(case.name, first, cells, widths))
    for name in names:
        mine = [outcome for outcome in outcomes if outcome.backend.name == name]
        passed = sum(outcome.passed for outcome in mine)
        lines.append(f"{name}: {passed} of {len(mine)} passed, {len(chosen) - len(mine)} without a meaning")
    for outcome in outcomes:
        if outcome.error is not None:
            kind = type(outcome.error).__name__
            lines.append(f"FAIL {outcome.case.name} ({outcome.backend.name}): {kind}: {outcome.error}")
    return "\n".join(lines) + "\n"


def _line(case: str, first: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    columns = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join([case.ljust(first), *columns]).rstrip()


def _as_json(outcomes: Sequence[Outcome]) -> str:
    rows = [
        {
            "case": outcome.case.name,
            "group": outcome.case.group,
            "provider": outcome.backend.name,
            "passed": outcome.passed,
            "error": None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
            "took_s": round(outcome.took_s, 3),
        }
        for outcome in outcomes
    ]
    return json.dumps(rows, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
