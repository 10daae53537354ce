"""Programs that hold terminals to their promises for minutes, here run for seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120


def run(program: str, *arguments: str) -> str:
    """Run one of them from a clone; gives what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{program}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_storm_of_detaches_takeovers_and_cuts_loses_and_doubles_nothing(backend: str) -> None:
    said = run("pty_storm", "--provider", backend, "--moves", "60")
    assert "0 bytes lost, 0 doubled" in said, said
    assert re.search(r"\b[1-9]\d* x take over", said), said


def test_results_of_short_commands_are_whole(backend: str) -> None:
    said = run("pty_exec", "--provider", backend, "--commands", "120")
    assert f"{backend}, oneshot: 120 of 120 right" in said, said
    assert f"{backend}, session: 120 of 120 right" in said, said
