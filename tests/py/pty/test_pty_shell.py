"""The shell on the command line, as somebody uses it: in a terminal of its own, which tmux holds and shows."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tmux_help import PACKAGE, PATIENCE_S, SHELL, Tmux

from nemo_gym_sandbox import AsyncSandbox, SandboxSpec
from nemo_gym_sandbox._terminal import Modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tmux]:
    monkeypatch.chdir(tmp_path)
    tmux = Tmux(tmp_path)
    yield tmux
    tmux.close()


def image(backend: str) -> str:
    return "" if backend == "local" else " --image lab/busybox:1"


def same_modes(tmp_path: Path) -> bool:
    return (tmp_path / "before").read_text() == (tmp_path / "after").read_text() != ""


def test_a_shell_from_start_to_exit(terminal: Tmux, backend: str, tmp_path: Path) -> None:
    terminal.modes("before")
    terminal.type(f"{SHELL} --provider {backend}{image(backend)}; echo status-$?")
    terminal.sees(r"# (\x1b\[6n)?$")
    terminal.type("stty size; pwd; echo $TERM; tty")
    screen = terminal.sees(r"^/dev/pts/")
    assert re.search(r"^30 100$\n^/tmp$\n^(tmux|screen)", screen, re.MULTILINE), screen
    terminal.resize(120, 40)
    terminal.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo re''sized")
    terminal.sees("^resized")
    terminal.type("sleep 4713")
    terminal.sees("sleep 4713$")
    terminal.keys("C-c")
    terminal.sees(r"# $")
    terminal.type("printf '\\033[31mred\\033[0m \\342\\202\\254\\n'")
    terminal.sees(r"\x1b\[31mred\x1b\[39m €", "-e")
    terminal.type("exit 5")
    terminal.sees("^status-5$")
    terminal.modes("after")
    assert same_modes(tmp_path)


def test_an_interrupt_is_not_behind_the_flood(backend: str, script_environment: Callable[[], dict[str, str]]) -> None:
    """All of a flood that is queued between the program and the screen comes before the prompt, so it has to be little."""
    master, other = os.openpty()
    command = [*SHELL.split(), "--provider", backend, *image(backend).split(), "--command", "PS1='box> ' sh -i"]
    shell = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env=script_environment(), start_new_session=True
    )
    os.close(other)

    def read_until(want: bytes) -> int:
        """Read at the pace of a slow screen, a MiB/s, and give how much came."""
        seen, tail, began = 0, b"", time.monotonic()
        while want not in tail:
            assert time.monotonic() < began + PATIENCE_S, tail
            chunk = os.read(master, 4096)
            seen += len(chunk)
            tail = tail[-100:] + chunk
            time.sleep(max(0, began + seen / (1 << 20) - time.monotonic()))
        return seen

    try:
        read_until(b"box> ")
        for _ in range(3):
            os.write(master, b"yes ABC\n")
            read_until(b"ABC\r\nABC\r\n")
            began = time.monotonic()
            while time.monotonic() < began + 1:  # until everything on the way is full
                read_until(b"ABC\r\n")
            os.write(master, b"\x03")
            assert read_until(b"box> ") < 1_000_000
        os.write(master, b"exit\n")
        read_until(b"exit")
        with contextlib.suppress(OSError):  # EIO: the shell has left the terminal
            while os.read(master, 4096):
                pass
        assert shell.wait(PATIENCE_S) == 130  # as the last command
    finally:
        shell.kill()
        shell.wait()
        os.close(master)


def test_the_end_of_input_ends_the_shell(terminal: Tmux) -> None:
    terminal.type(f"{SHELL} --provider local; echo status-$?")
    terminal.sees(r"# $")
    terminal.keys("C-d")
    terminal.sees("^status-0$")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV])
def test_the_terminal_is_restored_when_the_client_dies(terminal: Tmux, tmp_path: Path, number: signal.Signals) -> None:
    terminal.modes("before")
    # Not from bash, which would restore it itself.
    (tmp_path / "outer.py").write_text("import subprocess, sys; print('status', subprocess.call(sys.argv[1:]))")
    terminal.type(f"{sys.executable} outer.py {SHELL} --provider local --command 'cat; echo gone'")
    outer = terminal.pid_of("outer.py")
    terminal.is_raw(True)
    inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    terminal.type("printed by c''at")
    terminal.sees("^printed by c''at$\nprinted by c''at$")
    os.kill(int(inner[0]), number)
    expected = -number if number in (signal.SIGKILL, signal.SIGSEGV) else 128 + number
    terminal.sees(f"status {expected}$")
    terminal.is_raw(False)
    terminal.modes("after")
    assert same_modes(tmp_path)


def test_a_sandbox_that_cannot_be_made(terminal: Tmux) -> None:
    terminal.type(f"{SHELL} --provider docker --image 127.0.0.1:1/none; echo status-$?")
    terminal.sees("^sandbox shell failed: .*none")
    terminal.sees("^status-1$")


def test_modes_that_programs_left_on_are_switched_off(terminal: Tmux) -> None:
    command = "printf '\\033[?1049h\\033[?1000;1006h\\033[?2004h\\033[?25lin the %s screen' alternate; cat"
    terminal.type(f"clear; echo be''fore; {SHELL} --provider local --command \"{command}\"; echo status-$?")
    terminal.sees("in the alternate screen")
    assert (terminal.flag("alternate_on"), terminal.flag("mouse_standard_flag"), terminal.flag("cursor_flag")) == (
        "1",
        "1",
        "0",
    )
    os.kill(terminal.pid_of("nemo_gym_sandbox.shell"), signal.SIGTERM)
    screen = terminal.sees("^status-143$")
    assert "before" in screen
    assert "alternate screen" not in screen
    assert (terminal.flag("alternate_on"), terminal.flag("mouse_standard_flag"), terminal.flag("cursor_flag")) == (
        "0",
        "0",
        "1",
    )


def test_mouse_reports_and_keys_pass_unchanged(terminal: Tmux) -> None:
    command = "printf '\\033[?1000;1006h'; stty raw -echo; printf rea''dy; busybox dd bs=1 count=11 2>/dev/null | od -An -c; stty sane"
    terminal.type(f'{SHELL} --provider local --command "{command}"; echo status-$?')
    terminal.sees("ready")
    terminal.run("send-keys", "-H", *(f"{byte:02x}" for byte in b"\x1b[<0;5;7M\x00\x7f"))
    screen = terminal.sees("status-0$")
    assert re.search(r"033\s+\[\s+<\s+0\s+;\s+5\s+;\s+7\s+M\s+\\0\s+177", screen), screen


async def test_leaving_and_coming_back(terminal: Tmux, backend: str) -> None:
    terminal.type(f"{SHELL} --provider {backend}{image(backend)} --keep --detach-key ctrl-]")
    terminal.sees(r"# (\x1b\[6n)?$")
    terminal.type("V=kept; echo in the shell")
    terminal.sees("^in the shell$")
    terminal.keys("C-]")
    found = re.search(
        r"come back with: nemo-gym-sandbox attach (--provider \w+ (\S+)/\S+)",
        terminal.sees("come back with.*\n(.*\n)*host> $"),
    )
    assert found
    terminal.sees(r"^\[detached\]$")
    terminal.type(
        f"clear; {sys.executable} -c 'from nemo_gym_sandbox.shell import attach as a; import sys; sys.exit(a())' {found[1]}; echo status-$?"
    )
    terminal.sees("^in the shell$")
    terminal.type("echo it is $V; exit 6")
    terminal.sees("^it is kept$")
    terminal.sees("^status-6$")
    sandbox = await AsyncSandbox.connect({"sandbox_id": found[2]}, provider={backend: {}})
    await sandbox.stop()


async def test_a_shell_in_a_running_sandbox_lets_it_live_on(terminal: Tmux) -> None:
    async with AsyncSandbox({"local": {}}, SandboxSpec()) as sandbox:
        await sandbox.start()
        number = (await sandbox.serialize())["sandbox_id"]
        terminal.type(
            f"{SHELL} --provider local --sandbox {number} --command 'echo there > /tmp/mark-{number}'; echo status-$?"
        )
        terminal.sees("^status-0$")
        assert (await sandbox.exec(f"cat /tmp/mark-{number}")).stdout == "there\n"


def test_options(terminal: Tmux, tmp_path: Path) -> None:
    (tmp_path / "block.json").write_text(
        '{"sandbox": {"local": {"isolation": "none"}, "default_metadata": {"a": "b"}}}'
    )
    terminal.type(f"{SHELL} --config block.json --command 'exit 9'; echo status-$?")
    terminal.sees("^status-9$")
    (tmp_path / "two.yaml").write_text("one: {local: {}}\ntwo: {local: {nope: 1}}\n")
    terminal.type(f"clear; {SHELL} --config two.yaml --block one --command 'exit 8'; echo status-$?")
    terminal.sees("^status-8$")
    terminal.type(f"clear; {SHELL} --config two.yaml --block two; echo status-$?")
    terminal.sees("^sandbox shell failed: .*nope")
    terminal.sees("^status-1$")
    terminal.type(f"clear; {SHELL} --config two.yaml --block three; echo status-$?")
    terminal.sees("^sandbox shell failed: .*'three' is not defined")
    terminal.type(f"clear; {SHELL} --provider local --config x; echo status-$?")
    terminal.sees("not allowed with argument")
    terminal.sees("^status-2$")


def test_without_a_terminal_it_says_so(script_environment: Callable[[], dict[str, str]]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "nemo_gym_sandbox.shell", "--provider", "local"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=script_environment(),
        timeout=PATIENCE_S,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "must be a terminal" in run.stderr


@pytest.fixture
def script_environment() -> Callable[[], dict[str, str]]:
    return lambda: {**os.environ, "PYTHONPATH": str(PACKAGE)}


def test_what_is_switched_off_again() -> None:
    modes = Modes()
    for piece in (b"\x1b[?10", b"49h text \x1b[?2004", b"h\x1b[?25l\x1b[?1000;1002;77h\x1b[31m", b"\x1b[?1000l"):
        modes.feed(piece)
    assert modes.reset() == b"\x1b[?1002l\x1b[?2004l\x1b[?1049l\x1b[?25h"
    modes.feed(b"\x1b[?25h\x1b[?1002;2004l\x1b[?1049l")
    assert modes.reset() == b""


def test_a_shell_that_is_stopped_and_continued(terminal: Tmux, tmp_path: Path) -> None:
    terminal.modes("before")
    terminal.type(f"clear; {SHELL} --provider local")
    terminal.sees(r"# $")
    os.kill(terminal.pid_of("nemo_gym_sandbox.shell"), signal.SIGTSTP)
    terminal.sees("Stopped(.*\n)*host> $")
    terminal.modes("after")
    assert same_modes(tmp_path)
    terminal.resize(90, 20)
    terminal.type("stty -echo; fg; echo status-$?; stty echo")
    terminal.is_raw(True)
    terminal.type("until [ \"$(stty size)\" = '20 90' ]; do sleep 0.1; done; echo re''sized; exit 5")
    terminal.sees("^resized$(.*\n)*status-5$")
    terminal.is_raw(False)


def test_a_terminal_that_somebody_made_nonblocking_shows_all(
    script_environment: Callable[[], dict[str, str]],
) -> None:
    master, other = os.openpty()
    os.set_blocking(other, False)
    command = [*SHELL.split(), "--provider", "local", "--command", "stty -onlcr; head -c 300000 /dev/zero | tr '\\0' x"]
    shell = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=script_environment())
    shown = b""
    try:
        with contextlib.suppress(OSError):  # EIO: the shell has left the terminal
            os.close(other)
            while chunk := os.read(master, 65536):
                shown += chunk
        assert shown == b"x" * 300_000
        assert shell.wait(PATIENCE_S) == 0
    finally:
        shell.kill()
        shell.wait()
        os.close(master)


def test_a_terminal_without_a_size_is_taken_for_a_usual_one(script_environment: Callable[[], dict[str, str]]) -> None:
    master, other = os.openpty()
    command = [*SHELL.split(), "--provider", "local", "--command", "stty size"]
    env = {name: value for name, value in script_environment().items() if name not in ("LINES", "COLUMNS")}
    shell = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env)
    os.close(other)
    try:
        assert os.read(master, 4096) == b"24 80\r\n"
        assert shell.wait(PATIENCE_S) == 0
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
