"""A terminal that tmux holds and shows, for what has to be seen on a screen."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "python"
PATIENCE_S = 20
SHELL = f"{sys.executable} -m nemo_gym_sandbox.shell"


class Tmux:
    """One terminal of 100 x 30 with a shell of the host in it, whose prompt is ``host>``."""

    def __init__(self, folder: Path, **environment: str) -> None:
        tmux = shutil.which("tmux")
        assert tmux, "these tests need tmux"
        self._base = [tmux, "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "TERM": "xterm-256color", **environment}
        (folder / "rc").write_text("PS1='host> '\n")
        self.run("new-session", "-d", "-x", "100", "-y", "30", f"bash --rcfile {folder}/rc", env=env)
        self.sees(r"host> $")

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run([*self._base, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, *options: str) -> str:
        return self.run("capture-pane", "-p", "-J", *options).rstrip("\n")

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def type(self, text: str) -> None:
        self.run("send-keys", "-l", text)
        self.keys("Enter")

    def resize(self, cols: int, rows: int) -> None:
        self.run("resize-window", "-x", str(cols), "-y", str(rows))

    def sees(self, pattern: str, *options: str) -> str:
        """Wait for the screen to match."""
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, screen := self.screen(*options), re.MULTILINE):
            assert time.monotonic() < end, f"{pattern!r} did not come:\n{screen}"
            time.sleep(0.01)
        return screen

    def modes(self, name: str) -> str:
        """The settings of the terminal, as stty tells them."""
        self.type(f"stty -g > {name}; echo saved-{name}")
        self.sees(f"^saved-{name}")
        return name

    def flag(self, name: str) -> str:
        return self.run("display-message", "-p", f"#{{{name}}}").strip()

    def pid_of(self, text: str) -> int:
        """The process below the terminal's shell with this in its command line."""
        end = time.monotonic() + PATIENCE_S
        shell = self.flag("pane_pid")
        while time.monotonic() < end:
            for child in Path(f"/proc/{shell}/task/{shell}/children").read_text().split():
                with contextlib.suppress(OSError):
                    if text in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "):
                        return int(child)
            time.sleep(0.05)
        raise AssertionError(f"nothing runs {text!r}")

    def is_raw(self, raw: bool) -> None:
        """Wait for the terminal to be in raw mode, or out of it."""
        end = time.monotonic() + PATIENCE_S
        command = ["stty", "-a", "-F", self.flag("pane_tty")]
        while ("-opost" in subprocess.run(command, capture_output=True, text=True, check=True).stdout) is not raw:
            assert time.monotonic() < end, self.screen()
            time.sleep(0.05)

    def close(self) -> None:
        self.run("kill-server")
