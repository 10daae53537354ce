"""Tell which configuration won, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from nemo_gym_sandbox._cli import _backends as backends
from nemo_gym_sandbox._cli._output import print_json, print_table
from nemo_gym_sandbox._cli._program import run_verb
from nemo_gym_sandbox._version import __version__

if TYPE_CHECKING:
    import argparse

RUN_ENV = "NEMO_GYM_RUN_ID"


def main(arguments: list[str]) -> int:
    """Look at everything and return the exit status."""
    return run_verb(
        "doctor",
        "Tells which engine, isolation, versions and directories would be used, and what chose them.",
        _declare,
        _run,
        arguments,
    )


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects")


async def _run(arguments: argparse.Namespace) -> int:
    facts = [*_package(), *await _backends()]
    if arguments.json:
        print_json(facts)
        return 0
    rows: list[tuple[str, ...]] = []
    for fact in facts:
        value = fact["value"] or "-"
        if fact["problem"]:
            value = f"{fact['value']} PROBLEM: {fact['problem']}".strip()
        rows.append((fact["of"], fact["name"], fact["origin"] or "-", value))
    print_table(("OF", "WHAT", "CHOSEN BY", "VALUE"), rows)
    return 0


def _fact(of: str, name: str, value: str, origin: str = "", problem: str = "") -> dict[str, str]:
    return {"of": of, "name": name, "value": value, "origin": origin, "problem": problem}


def _package() -> list[dict[str, str]]:
    from nemo_gym_sandbox._core.lib import library

    lib = library()
    about = lib.build_info()
    run = os.environ.get(RUN_ENV, "")
    return [
        _fact("package", "version", __version__),
        _fact("package", "python", f"{platform.python_version()} at {sys.executable}"),
        _fact("package", "library", f"{lib.path}, interface {lib.abi[0]}.{lib.abi[1]}, {about['go']}"),
        _fact("package", "run", run or "a new one for each process", RUN_ENV if run else ""),
    ]


async def _backends() -> list[dict[str, str]]:
    facts: list[dict[str, str]] = []
    for name in backends.NAMES:
        try:
            async with backends.opened(name) as backend:
                found = await backend.examine()
        except (RuntimeError, TimeoutError, ValueError) as error:
            facts.append(_fact(name, "configuration", "", problem=str(error)))
        else:
            facts += [_fact(name, fact["name"], fact["value"], fact["origin"], fact["problem"]) for fact in found]
    return facts
