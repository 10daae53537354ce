"""Makes docs/shell.svg: the screen of a real session of the shell command.

    ./build.sh lib && tests/testenv/make-terminal-image.sh && .venv/bin/python -m bench.pty_capture

It needs tmux and a Docker engine. What is typed is below; what is answered is whatever the sandbox answered.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from nemo_gym_sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "shell.svg"
IMAGE = "lab/terminal:1"
COLS, ROWS = 104, 24
PATIENCE_S = 30
WIDTH, HEIGHT, BASE, MARGIN = 7.83, 17, 13, 14  # of a character, of a line, of the letters, around it all
COLOURS = ("#3b4252", "#bf616a", "#a3be8c", "#ebcb8b", "#81a1c1", "#b48ead", "#88c0d0", "#e5e9f0")
PAPER, INK = "#242933", "#d8dee9"


class Screen:
    """A terminal that tmux holds."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]
        (folder / "rc").write_text("PS1='\\[\\033[32m\\]you@host\\[\\033[0m\\]$ '\n")
        env = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "python"),
        }
        self._run("new-session", "-d", "-x", str(COLS), "-y", str(ROWS), f"bash --rcfile {folder}/rc", env=env)

    def _run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run([*self._base, *arguments], env=env, check=True, capture_output=True, text=True).stdout

    def shown(self, *options: str) -> str:
        return self._run("capture-pane", "-p", *options).rstrip()

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait for the screen to match."""
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.shown("-J"), re.MULTILINE)):
            if time.monotonic() > end:
                raise SystemExit(f"{pattern!r} did not come:\n{self.shown()}")
            time.sleep(0.05)
        return found

    def enter(self, text: str) -> None:
        self._run("send-keys", "-l", text)
        self._run("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    def close(self) -> None:
        self._run("kill-server")


def play(screen: Screen) -> str:
    """What is typed; gives the last screen, with its colours."""
    screen.sees(r"you@host\$ *$")
    screen.enter(f"nemo-gym-sandbox shell --image {IMAGE} --keep --detach-key ctrl-]")
    screen.sees(r"^bash-.*# *$")
    screen.enter("cat /etc/passwd; tty; (sleep 3; echo 'the build is done') &")
    screen.sees(r"^\[1\] \d+\n.*# *$")
    screen.press("C-]")
    way = screen.sees(r"come back with: (nemo-gym-sandbox attach .* (\S+)/(\S+))$")
    try:
        screen.sees(r"^\[detached\]\n.*you@host\$ *$")
        screen.enter(way[1])
        screen.sees("(?s)detached.*the build is done$")
        screen.enter("")
        screen.sees(r"^\[1\]\+  Done.*\n.*# *$")
        screen.enter("ls --color=always -d /usr /bin/vim; exit 3")
        screen.sees(r"(?s)exit 3.*you@host\$ *$")
        screen.enter("echo status $?")
        screen.sees("^status 3$")
        return screen.shown("-e")
    finally:
        sandbox = Sandbox.connect({"sandbox_id": way[2]}, provider={"docker": {}})
        sandbox.stop()


def drawn(shown: str) -> str:
    """The screen as a picture."""
    lines = shown.split("\n")
    width, height = COLS * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{BASE}" fill="{INK}" style="white-space: pre">',
    ]
    colour, bold = INK, False
    for row, line in enumerate(lines):
        column = 0
        y = MARGIN + row * HEIGHT + BASE
        for codes, text in re.findall(r"((?:\x1b\[[0-9;]*m)*)([^\x1b]*)", line):
            for code in re.findall(r"[0-9]+", codes.replace("[m", "[0m")):
                number = int(code)
                if number in (0, 39):
                    colour = INK
                    bold = bold and number == 39
                elif number == 1:
                    bold = True
                elif 30 <= number <= 37:
                    colour = COLOURS[number - 30]
            if text.strip():
                look = (f' fill="{colour}"' if colour != INK else "") + (' font-weight="bold"' if bold else "")
                length = f' textLength="{len(text) * WIDTH:.1f}"' if len(text) > 1 else ""
                picture.append(
                    f'<text x="{MARGIN + column * WIDTH:.1f}" y="{y}"{length}{look}>{html.escape(text, quote=False)}</text>'
                )
            column += len(text)
    return "\n".join([*picture, "</g>", "</svg>", ""])


def main() -> None:
    """Play, and draw the end of it."""
    argparse.ArgumentParser(prog="python -m bench.pty_capture", description="Makes docs/shell.svg.").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        screen = Screen(Path(folder))
        try:
            OUTPUT.write_text(drawn(play(screen)))
        finally:
            screen.close()
    print(f"made {OUTPUT}")


if __name__ == "__main__":
    main()
