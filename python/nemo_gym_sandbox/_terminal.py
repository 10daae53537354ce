"""Joins the terminal of this process with a terminal session in a sandbox, and leaves it as it was found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Self

from nemo_gym_sandbox.providers.base import SandboxPtyError

if TYPE_CHECKING:
    from types import TracebackType

    from nemo_gym_sandbox.providers.base import SandboxPtySession

__all__ = ["Detached", "LocalTerminal", "Terminated", "join"]

_CHUNK = 64 << 10
_SHOWN = 16 << 10  # output that is shown in one turn of the loop: a screen takes milliseconds for it
_END_OF_INPUT = b"\x04"
_RESIZE_PAUSE_S = 0.02  # a window that is being dragged changes with every pixel

# Restores the terminal when this process is gone before it said that it has done so itself. It is a process because
# nothing else outlives a kill; it belongs to the terminal's session, else it may not change it, but to no foreground job.
_GUARD = """
import os, signal, sys, termios
for number in (signal.SIGTTOU, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
saved = eval(sys.argv[1])
os.write(1, b"+")
if not os.read(0, 1):
    try:
        termios.tcsetattr(2, termios.TCSADRAIN, saved)
    except (OSError, termios.error):
        pass
"""


class Detached(Exception):
    """The user left a session that goes on."""


class Terminated(Exception):
    """A signal asked this process to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Modes:
    """What programs switched on in the terminal by escape sequences, to be switched off when they can't do it any more."""

    _SEQUENCE = re.compile(rb"\x1b\[\?([0-9;]{1,24})([hl])")
    _OFF = {
        mode: b"\x1b[?%dl" % mode
        for mode in (1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 47, 1047, 1049)
    } | {25: b"\x1b[?25h"}  # the cursor, which is switched off and not on
    _LONGEST = 30

    def __init__(self) -> None:
        self._on: set[int] = set()
        self._tail = b""

    def feed(self, output: bytes) -> None:
        """Look through what is about to be shown."""
        if b"\x1b" not in output and b"\x1b" not in self._tail:
            return
        data = self._tail + output
        for found in self._SEQUENCE.finditer(data):
            for text in found[1].split(b";"):
                mode = int(text or b"0")
                if mode in self._OFF and (found[2] == b"h") is not (mode == 25):
                    self._on.add(mode)
                else:
                    self._on.discard(mode)
        # A sequence may be cut between two chunks; one that is seen twice says the same.
        last = data.rfind(b"\x1b")
        self._tail = data[last:] if last >= 0 and len(data) - last < self._LONGEST else b""

    def reset(self) -> bytes:
        """What switches everything off again, the alternate screen last."""
        return b"".join(self._OFF[mode] for mode in self._OFF if mode in self._on)


class LocalTerminal:
    """The terminal of this process in raw mode, while the ``with`` block runs.

    It is restored on every way out, by a guardian process should this one be killed.
    """

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._modes = Modes()
        self._saved: list[Any] = []
        self._guard: subprocess.Popen[bytes] | None = None

    @staticmethod
    def available() -> bool:
        """Whether this process has a terminal at both ends."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    @staticmethod
    def size() -> tuple[int, int]:
        """Rows and columns; those of the environment, or 24 and 80, of a terminal that has not been told its own."""
        usual = shutil.get_terminal_size()
        with contextlib.suppress(OSError):  # the variables that the line above prefers may be old
            own = os.get_terminal_size(sys.stdout.fileno())
            return own.lines or usual.lines, own.columns or usual.columns
        return usual.lines, usual.columns

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._in)
        guard = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _GUARD, repr(self._saved)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._in,  # its way to the terminal
            process_group=0,
        )
        self._guard = guard
        try:
            assert guard.stdout is not None
            with guard.stdout:
                guard.stdout.read(1)  # now it is on watch
            tty.setraw(self._in, termios.TCSADRAIN)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            # Whoever leaves in the middle of a line gets the next prompt on a line of its own.
            self.show(self._modes.reset() + (b"" if exc_type is None else b"\r\n"))
        self._restore()

    def _restore(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal itself may be gone
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        with contextlib.suppress(OSError), guard.stdin:
            guard.stdin.write(b".")
        guard.wait()

    def stop(self) -> None:
        """Stop this process, as it was asked to, with the terminal as it was found; :meth:`go_on` is for its return."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)
        os.kill(os.getpid(), signal.SIGSTOP)

    def go_on(self) -> None:
        """Put the terminal into raw mode again, which others have used meanwhile."""
        with contextlib.suppress(OSError, termios.error):  # whoever reads from it is told
            tty.setraw(self._in, termios.TCSADRAIN)

    def show(self, output: bytes) -> None:
        """Print bytes as they are. OSError when the terminal is gone."""
        self._modes.feed(output)
        left = memoryview(output)
        while left:
            try:
                left = left[os.write(self._out, left) :]
            except BlockingIOError:  # somebody who shares the terminal has made it so
                select.select((), (self._out,), ())

    def typed(self) -> bytes:
        """What was typed; ``b""`` is the end of it. To be called when there is something."""
        return os.read(self._in, _CHUNK)

    @property
    def input(self) -> int:
        """The descriptor that is readable when something was typed."""
        return self._in


async def join(session: SandboxPtySession, terminal: LocalTerminal, *, detach_key: bytes | None = None) -> int:
    """Let the user work in a session until its process exits; gives the exit code.

    Keys, mouse reports, colours and everything else pass unchanged, but for ``detach_key``, which raises Detached. Changes
    of the window's size are forwarded, and the terminal is given back while this process is stopped. Raises SandboxPtyError
    when the session is lost, OSError when the terminal is.
    """
    loop = asyncio.get_running_loop()
    resized = asyncio.Event()

    def go_on() -> None:
        terminal.go_on()
        resized.set()

    handlers = {signal.SIGWINCH: resized.set, signal.SIGTSTP: terminal.stop, signal.SIGCONT: go_on}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    output = asyncio.ensure_future(_show(session, terminal))
    running = {
        output,
        asyncio.ensure_future(_type(session, terminal, detach_key)),
        asyncio.ensure_future(_follow_size(session, resized)),
    }
    tasks = list(running)
    try:
        while not output.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in handlers:
            loop.remove_signal_handler(number)
    return await session.wait_exit()


async def _show(session: SandboxPtySession, terminal: LocalTerminal) -> None:
    async for chunk in session:
        for at in range(0, len(chunk), _SHOWN):
            terminal.show(chunk[at : at + _SHOWN])
            await asyncio.sleep(0)  # a key that was pressed meanwhile is sent before more is shown


async def _type(session: SandboxPtySession, terminal: LocalTerminal, detach_key: bytes | None) -> None:
    while True:
        await _readable(terminal.input)
        data = terminal.typed()
        if detach_key is not None and detach_key in data:
            await _send(session, data[: data.index(detach_key)])
            raise Detached
        await _send(session, data or _END_OF_INPUT)
        if not data:
            return


async def _send(session: SandboxPtySession, data: bytes) -> None:
    if data:
        with contextlib.suppress(SandboxPtyError):  # the output tells why it has ended
            await session.write(data)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _follow_size(session: SandboxPtySession, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        await asyncio.sleep(_RESIZE_PAUSE_S)
        resized.clear()
        with contextlib.suppress(SandboxPtyError):
            await session.resize(*LocalTerminal.size())
