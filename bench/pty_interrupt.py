"""How long an interrupt takes while a program floods the terminal, as somebody in front of the screen sees it.

    python -m bench.pty_interrupt [--provider local docker] [--rounds N]

tmux is the screen. In it runs the shell command of this package, or, as the floor, a shell of this machine. A program prints
as fast as it can, Ctrl-C is pressed, and the time until the prompt stands below the flood is taken. Both take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from bench import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMPT = "ready>"
FLOOD = "yes 'the quick brown fox jumps over the lazy dog 0123456789'"
PATIENCE_S = 60


class Screen:
    """One terminal of 80 x 24 that tmux shows, with a shell in it."""

    def __init__(self, folder: Path, command: str) -> None:
        tmux = shutil.which("tmux")
        if tmux is None:
            raise RuntimeError("this needs tmux (Debian: apt-get install tmux)")
        self._base = [tmux, "-f", "/dev/null", "-S", str(folder / "tmux")]
        packages = str(Path(__file__).resolve().parents[1] / "python")
        env = {**os.environ, "PYTHONPATH": packages, "TERM": "xterm-256color"}
        self.run("new-session", "-d", "-x", "80", "-y", "24", command, env=env)

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run([*self._base, *arguments], env=env, check=True, capture_output=True, text=True).stdout

    def type(self, text: str) -> None:
        self.run("send-keys", "-l", text)
        self.run("send-keys", "Enter")

    def last_line(self) -> str:
        return self.run("capture-pane", "-p").rstrip().rpartition("\n")[2]

    def until(self, *prompts: str) -> None:
        """Wait for the screen to end with one of these."""
        end = time.monotonic() + PATIENCE_S
        while not self.last_line().rstrip().endswith(prompts):
            if time.monotonic() > end:
                raise RuntimeError(f"none of {prompts} came; the screen ends with {self.last_line()!r}")

    def interrupt(self, pause_s: float) -> float:
        """Seconds from the key to the prompt."""
        self.type(FLOOD)
        end = time.monotonic() + PATIENCE_S
        while "lazy dog" not in self.run("capture-pane", "-p").partition("\n")[0]:
            if time.monotonic() > end:
                raise RuntimeError("the flood did not come")
        time.sleep(pause_s)
        began = time.perf_counter()
        self.run("send-keys", "C-c")
        self.until(PROMPT)
        took = time.perf_counter() - began
        self.type("printf '\\033c'")  # else the next flood would be seen before it comes
        self.until(PROMPT)
        return took


@contextlib.contextmanager
def screen(command: str) -> Iterator[Screen]:
    with tempfile.TemporaryDirectory() as folder:
        shown = Screen(Path(folder), command)
        try:
            shown.until("#", "$")
            # ``exec`` keeps the shell's own line editing and prompt out of the way.
            shown.type(f"exec env -u ENV PS1='{PROMPT} ' sh -i")
            shown.until(PROMPT)
            yield shown
        finally:
            shown.run("kill-server")


def compare(provider: str, image: str, rounds: int, randomly: random.Random) -> None:
    shell = f"{sys.executable} -m nemo_gym_sandbox.shell --provider {provider}"
    if provider != "local":
        shell += f" --image {image}"
    floor: list[float] = []
    ours: list[float] = []
    with screen("sh") as here, screen(shell) as there:
        for _ in range(rounds):
            pause_s = randomly.uniform(0.2, 0.6)
            floor.append(here.interrupt(pause_s))
            ours.append(there.interrupt(pause_s))
    for name, waits in (("a shell of this machine", floor), (f"a shell in a sandbox, {provider}", ours)):
        print(
            f"    {name}: median {median(waits) * 1e3:.0f} ms, "
            f"p95 {measure.percentile(waits, 0.95) * 1e3:.0f} ms, longest {max(waits) * 1e3:.0f} ms"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pty_interrupt", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", nargs="+", default=["local", "docker"], choices=["local", "docker"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--image", default="lab/busybox:1")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args(argv)
    print(measure.machine())
    print(f"seed {given.seed}; from Ctrl-C to the prompt, {given.rounds} times each:")
    for provider in given.provider:
        compare(provider, given.image, given.rounds, random.Random(given.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
