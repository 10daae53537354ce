"""Programs look the same whether they run in a terminal directly or in a sandbox behind the shell command."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tmux_help import PATIENCE_S, SHELL, Tmux
from truth import PROMPT, SCRIPTS, Keys, Line, Resize, See, Step, Type, Wait

from nemo_gym_sandbox import Sandbox, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "lab/terminal:1"
MAKE_IMAGE = Path(__file__).resolve().parents[2] / "testenv" / "make-terminal-image.sh"
# Everything that programs look at is the same on both sides.
INSIDE = (
    f"env -i PATH=/usr/bin:/bin HOME=/nonexistent HISTFILE= INPUTRC=/dev/null LESSHISTFILE=- LC_ALL=C.UTF-8 TERM=tmux-256color "
    f"PS1={PROMPT} bash --norc --noprofile"
)
FLAGS = (
    "cursor_x",
    "cursor_y",
    "cursor_flag",
    "alternate_on",
    "insert_flag",
    "keypad_cursor_flag",
    "keypad_flag",
    "mouse_any_flag",
    "origin_flag",
    "wrap_flag",
    "scroll_region_upper",
    "scroll_region_lower",
)
QUIET_S = 0.3


class Player:
    """One terminal in which a script is played: a clean screen, an empty folder, a shell."""

    def __init__(self, folder: Path, command: str) -> None:
        folder.mkdir()
        self.tmux = Tmux(folder, LC_ALL="C.UTF-8", NEMO_GYM_SANDBOX_LOCAL_ISOLATION="none")
        self._start = folder / "start"
        self._start.write_text(command)

    def begin(self) -> None:
        self.tmux.type(f"clear; . {shlex.quote(str(self._start))}")
        self.tmux.sees(rf"^{PROMPT}$")
        self._line("d=$(mktemp -d); trap \"rm -r $d\" EXIT; cd $d; printf '\\033[H\\033[2J\\033[3J%s\\n' cl''ean")
        self.tmux.sees(rf"\Aclean\n{PROMPT}$")

    def do(self, step: Step) -> None:
        match step:
            case Type(text):
                for part in re.split("(\n)", text):
                    if part == "\n":
                        self.tmux.keys("Enter")
                    elif part:
                        self.tmux.run("send-keys", "-l", part)
            case Line(text):
                self._line(text)
            case Keys(names):
                self.tmux.keys(*names.split())
            case Resize(cols, rows):
                self.tmux.resize(cols, rows)
            case Wait(pattern) | See(pattern):
                self.tmux.sees(pattern)

    def _line(self, text: str) -> None:
        self.tmux.run("send-keys", "-l", text)
        self.tmux.sees(re.escape(text[-20:].rstrip()))
        self.tmux.keys("Enter")

    def look(self) -> str:
        """All that can be seen, and where it will go on."""
        flags = self.tmux.run("display-message", "-p", " ".join(f"{name}=#{{{name}}}" for name in FLAGS))
        return self.tmux.run("capture-pane", "-p", "-e") + flags

    def settled(self) -> str:
        """What is seen when nothing has changed for a while."""
        last, since = self.look(), time.monotonic()
        end = since + PATIENCE_S
        while time.monotonic() < since + QUIET_S:
            if (now := self.look()) != last:
                last, since = now, time.monotonic()
            assert since < end, "the screen does not come to rest"
        return last

    def becomes(self, wanted: str) -> None:
        """Wait for the screen to be that."""
        end = time.monotonic() + PATIENCE_S
        while (now := self.look()) != wanted:
            if time.monotonic() > end:
                lines = difflib.unified_diff(
                    wanted.split("\n"), now.split("\n"), "direct", "in the sandbox", lineterm="", n=1
                )
                pytest.fail("\n".join(map(repr, lines)), pytrace=False)


@pytest.fixture(scope="module", params=["local", "docker"])
def shell(request: pytest.FixtureRequest) -> Iterator[str]:
    """The command that opens the shell in a sandbox."""
    command, block, image = f"{SHELL} --provider {request.param}", {request.param: {}}, None
    if request.param == "local":
        block["local"]["isolation"] = "none"
    else:
        image = IMAGE
        subprocess.run([MAKE_IMAGE, IMAGE], check=True, capture_output=True)
    with Sandbox(block, SandboxSpec(image=image)) as sandbox:
        sandbox.start()
        yield f"{command} --sandbox {sandbox.serialize()['sandbox_id']} --command {shlex.quote('exec ' + INSIDE)}"


@functools.cache
def directly(name: str) -> list[str]:
    """What is to be seen, one screen after the other."""
    with tempfile.TemporaryDirectory() as folder:
        player = Player(Path(folder) / "direct", INSIDE)
        with contextlib.closing(player.tmux):
            player.begin()
            seen = [player.settled()]
            for step in SCRIPTS[name]:
                player.do(step)
                if isinstance(step, See):
                    seen.append(player.settled())
            return seen


@pytest.mark.parametrize("name", SCRIPTS)
def test_screen_is_the_same(shell: str, tmp_path: Path, name: str) -> None:
    wanted = iter(directly(name))
    player = Player(tmp_path / "boxed", shell)
    with contextlib.closing(player.tmux):
        player.begin()
        player.becomes(next(wanted))
        for step in SCRIPTS[name]:
            player.do(step)
            if isinstance(step, See):
                player.becomes(next(wanted))
