"""What the command line prints: results to standard output, messages to standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRAM = "nemo-gym-sandbox"

RUNTIME_FAILURE = 125
"""The exit code when the program itself failed, as that of ``docker run``."""


WRONG_USAGE = 2
"""The exit code for arguments that do not go together."""


def complain(message: str) -> None:
    """Print a message to standard error."""
    sys.stderr.write(f"{PROGRAM}: {message}\n")


def print_json(value: Any) -> None:
    """Print a value for programs."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows with their columns in line. The last column may be of any width."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def duration(seconds: float) -> str:
    """A length of time in its largest unit, such as ``5m``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"
