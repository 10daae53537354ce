"""Terminal sessions of native providers.

Output waits in the library, bounded, until it is read, and what is written is taken there at once: neither needs an
operation, so that a keystroke and its echo cost one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .._markers import MarkedOutput, Markers, typed
from .._timeouts import waitable
from ..providers.base import SandboxPtyError
from . import codec
from .errors import exception_for, failure
from .lib import EBADHANDLE, ECLOSED, EEOF, EFAILED
from .loop import running_bridge
from .native import traced

S = TypeVar("S")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from types import TracebackType
    from typing import TypeAlias

    from ..providers.base import SandboxPtySpec
    from .codec import Reply
    from .loop import Bridge
    from .objects import NativeObject, NativeSandbox

    Make: TypeAlias = Callable[[Bridge, NativeObject, Reply], S]
    """How a session is made of what the library answered."""

__all__ = ["NativePtySession", "attach", "create", "dial"]

PIECE = 64 << 10
"""How much is written in one turn of the loop."""

BURST = 4
"""How many reads in a row may find output without giving the loop a turn."""

KEEP = 16 << 20
"""How much output is taken into memory while somebody waits who does not read."""

QUIET_S = 1.0
"""A command without a connection is left alone when it has printed nothing for so long."""


async def create(sandbox: NativeSandbox, spec: SandboxPtySpec, make: Make[S]) -> S:
    """Open a session in a sandbox."""
    request: dict[str, Any] = {
        "command": spec.command or "",
        "cwd": spec.cwd or "",
        "env": codec.encode_env(spec.env),
        "rows": spec.rows,
        "cols": spec.cols,
        "user": codec.encode_user(spec.user),
        "pipes": not spec.pty,
    }
    return await _session(sandbox, codec.PTY_OPEN, {"sandbox": sandbox.number, **request}, make)


async def attach(
    sandbox: NativeSandbox,
    session_id: str,
    takeover: bool,
    since: int | None,
    make: Make[S],
) -> S:
    """Attach to a session of a sandbox."""
    request = {"sandbox": sandbox.number, "id": session_id, "takeover": takeover, "since": since or 0}
    return await _session(sandbox, codec.PTY_ATTACH, request, make)


async def dial(provider: NativeObject, request: dict[str, Any], make: Make[S]) -> S:
    """Open a session, or attach to one, by the address of what serves it; capi/ngs.h tells the keys."""
    return await _session(provider, codec.PTY_DIAL, {"provider": provider.number, **request}, make)


async def _session(owner: NativeObject, op: int, request: dict[str, Any], make: Make[S]) -> S:
    bridge = running_bridge()

    def undo(reply: Reply) -> asyncio.Future[Reply]:
        return bridge.start(codec.PTY_CLOSE, codec.encode({"terminal": reply.json()["terminal"]}))

    reply = await bridge.call(op, traced(request), undo=undo)
    if reply.status != 0:
        raise failure(reply, op)
    return make(bridge, owner, reply)


def _patience(timeout_s: float | None) -> float | None:
    """How long to wait, as event loops can take it: for NaN they wait any time, or end."""
    if timeout_s != timeout_s:
        raise ValueError("timeout_s must be a number of seconds, not nan")
    return waitable(timeout_s)


class _Output:
    """One output of a session. It does not know the session, so that nothing but its user keeps that alive."""

    def __init__(self, bridge: Bridge, stream: int) -> None:
        self.keepers = 0
        self._bridge = bridge
        self._stream = stream
        self._kept: deque[bytes | BaseException] = deque()
        self._size = 0
        self._waiting: list[asyncio.Future[None]] = []
        bridge.watch(stream, self._ready)

    def _ready(self) -> None:
        if self.keepers:
            self.keep()
        self.wake()

    def wake(self) -> None:
        """Have everybody who waits look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def more(self) -> None:
        """Wait until there may be more."""
        waiter = self._bridge.loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it was woken in the same moment
                self._waiting.remove(waiter)  # a silent session may be asked for hours
            raise

    def take(self) -> bytes | None:
        """The next chunk, ``b""`` at the end, ``None`` when there is none yet: then ``more()`` returns some time."""
        if not self._kept:
            return self._fetch()
        chunk = self._kept.popleft()
        if isinstance(chunk, BaseException):
            raise chunk
        self._size -= len(chunk)
        return chunk

    def keep(self) -> None:
        """Take what there is into memory, so that the process can go on."""
        while self._size < KEEP and not (self._kept and isinstance(self._kept[-1], BaseException)):
            try:
                chunk = self._fetch()
            except Exception as error:  # for whoever reads: it is the library's event that asks
                self._kept.append(error)
                return
            if not chunk:
                return
            self._kept.append(chunk)
            self._size += len(chunk)

    def _fetch(self) -> bytes | None:
        scratch = self._bridge.scratch
        size = self._bridge.lib.stream_read(self._stream, scratch.address, scratch.SIZE)
        if size > 0:
            return bytes(scratch.view[:size])
        if size == 0:
            return None
        if size == EEOF:
            return b""
        raise _refused(self._bridge, self._stream, size)


class _Input:
    """The input of a session, which does not know the session either."""

    def __init__(self, bridge: Bridge, stream: int) -> None:
        self._bridge = bridge
        self._stream = stream
        self._room: asyncio.Future[None] | None = None
        bridge.watch(stream, self.wake)

    def wake(self) -> None:
        """Have whoever waits look again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def put(self, data: bytes) -> int:
        """Write what there is room for."""
        taken = self._bridge.lib.stream_write(self._stream, data, len(data))
        if taken < 0:
            raise _refused(self._bridge, self._stream, taken)
        return taken

    async def room(self) -> None:
        """Wait for room, after a put that did not take all."""
        self._room = self._bridge.loop.create_future()
        await self._room


def _refused(bridge: Bridge, stream: int, code: int) -> BaseException:
    if code == EFAILED:
        error = exception_for(bridge.lib.stream_error(stream), codec.PTY_INFO)
        # What ended a session may have been cancelled there, or timed out: here nobody was, and nobody's time is over.
        return error if isinstance(error, SandboxPtyError) else SandboxPtyError(str(error))
    if code in (EBADHANDLE, ECLOSED):
        return SandboxPtyError("the PTY session is closed: its event loop, or the library, has ended")
    return bridge.lib.failure(code, "the PTY session can't be used")


class _Terminal:
    """Owns the library's side of a session. Dropped without a close, the session lives on in its sandbox."""

    __slots__ = ("__weakref__", "bridge", "number", "owner", "streams")

    def __init__(self, bridge: Bridge, owner: NativeObject, about: dict[str, Any]) -> None:
        self.bridge = bridge
        self.owner = owner  # let go of, it would take the session along
        self.number: int = about["terminal"]
        self.streams: tuple[int, int, int] = about["stdin"], about["stdout"], about["stderr"]

    def __del__(self) -> None:
        self.bridge.unwatch(*self.streams)
        self.bridge.lib.release(self.number)


class NativePtySession:
    """One live terminal, or three pipes, in a sandbox of a native provider. It belongs to the event loop that opened it.

    As an async context manager it closes itself on exit; iterating over it gives its output.
    """

    def __init__(self, bridge: Bridge, owner: NativeObject, reply: Reply) -> None:
        about = reply.json()
        self._terminal = terminal = _Terminal(bridge, owner, about)
        self._bridge = bridge
        self._id: str = about["id"]
        self._mode: str = about["mode"]
        self._replay_offset: int | None = about.get("replay_offset")
        stdin, stdout, stderr = terminal.streams
        self._input = _Input(bridge, stdin)
        self._outputs = _Output(bridge, stdout), _Output(bridge, stderr)
        self._turn = asyncio.Lock()  # of one writer at a time
        self._writers = 0  # that have it, or wait for it
        self._sizing = asyncio.Lock()  # so that the last size wins
        self._moving = asyncio.Lock()  # of detaching and attaching
        self._burst = 0
        self._detached = False
        self._closed = False
        self._closing: asyncio.Future[Reply] | None = None
        self._exit = bridge.start(codec.PTY_WAIT, codec.encode({"terminal": terminal.number}))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "detached" if self._detached else "attached"
        return f"<{type(self).__name__} {self._id} {self._mode} {state}>"

    # ---------------------------------------------------------------- what it is

    @property
    def session_id(self) -> str:
        """What another process needs to attach to it."""
        return self._id

    @property
    def mode(self) -> str | None:
        """``"pty"`` or ``"pipe"``."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether the session can no longer run commands: after close(), once it ended by an exit, a takeover or a lost
        connection, and when its event loop is closed. A detached session is not closed."""
        return self._closed or self._exit.done() or self._exit.get_loop().is_closed()

    @property
    def replay_offset(self) -> int | None:
        """The byte offset at which the replay of the last attach began, ``None`` when nothing was replayed."""
        return self._replay_offset

    # ---------------------------------------------------------------- output

    async def read(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of output; ``b""`` when the process has exited and all was read.

        Raises TimeoutError after ``timeout_s`` seconds, SandboxPtyError when the session ended without an exit, is
        detached, or lost output, in which case the reading can go on. Neither a timeout nor a cancellation loses output.
        """
        return await self._read(self._outputs[0], timeout_s)

    async def read_stderr(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of stderr, which only pipe mode has apart; otherwise ``b""`` once the process exited."""
        return await self._read(self._outputs[1], timeout_s)

    async def _read(self, output: _Output, timeout_s: float | None) -> bytes:
        self._at_home()
        if self._burst >= BURST:
            self._burst = 0
            await asyncio.sleep(0)
        chunk = self._take(output)
        if chunk is not None:
            return chunk
        self._burst = 0
        if timeout_s is None:
            return await self._next(output)
        async with asyncio.timeout(_patience(timeout_s)):
            return await self._next(output)

    async def _next(self, output: _Output) -> bytes:
        """Wait for the next chunk, when there was none just now."""
        # Nothing is awaited between the taking and the return, so that nothing is lost in between.
        while True:
            await output.more()
            if (chunk := self._take(output)) is not None:
                return chunk

    def _take(self, output: _Output) -> bytes | None:
        self._check()
        chunk = output.take()
        if chunk:
            self._burst += 1
        return chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    @contextlib.contextmanager
    def _unread(self) -> Generator[None]:
        """While somebody waits for the process and may not read, output is kept here, lest it hold the process back."""
        for output in self._outputs:
            output.keepers += 1
            if not self._detached:
                output.keep()
        try:
            yield
        finally:
            for output in self._outputs:
                output.keepers -= 1

    # ---------------------------------------------------------------- input

    async def write(self, data: bytes) -> None:
        """Send bytes, unchanged, to the session's input. Bytes of two writes never mix.

        It returns when they are on their way. Raises SandboxPtyError when the session takes no input any more.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a terminal takes bytes, not {type(data).__name__}")
        data = bytes(data)
        self._at_home()
        self._check_input()
        if self._writers == 0 and len(data) <= PIECE:
            data = data[self._input.put(data) :]
            if not data:
                return
        self._writers += 1
        try:
            async with self._turn:  # which is taken at once when nobody else writes
                await self._write(data)
        finally:
            self._writers -= 1

    async def _write(self, data: bytes) -> None:
        with self._unread():
            at = 0
            while at < len(data):
                self._check_input()
                piece = data[at : at + PIECE]
                taken = self._input.put(piece)
                at += taken
                if taken < len(piece):
                    await self._input.room()
                elif at < len(data):
                    await asyncio.sleep(0)

    def _at_home(self) -> None:
        """The session's event loop alone hears of it: in another one a wait would never end."""
        if asyncio.get_running_loop() is not self._exit.get_loop():
            raise SandboxPtyError(
                f"PTY session {self._id} belongs to another event loop; attach to it in this one, by its id"
            )

    def _check(self) -> None:
        if self._closed:
            raise SandboxPtyError(f"PTY session {self._id} is closed")
        if self._detached:
            self._check_life()
            raise SandboxPtyError(f"PTY session {self._id} is detached; reattach it first")

    def _check_life(self) -> None:
        """Raise what the session died of, if it did not end by an exit."""
        if self._exit.done() and self._exit.result().status != 0:
            raise failure(self._exit.result(), codec.PTY_WAIT)

    def _check_input(self) -> None:
        self._check()
        self._check_life()
        if self._exit.done():
            code = self._exit.result().json()["exit_code"]
            raise SandboxPtyError(f"PTY session {self._id} is closed: its process has exited with code {code}")

    # ---------------------------------------------------------------- the process

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size; nothing once the process has exited, which the caller can't always know.

        Raises ValueError for a size that no terminal can have.
        """
        self._check()
        if self._exit.done() and self._exit.result().status == 0:
            return
        async with self._sizing:
            await self._call(codec.PTY_RESIZE, rows=rows, cols=cols)

    async def send_signal(self, signal: str) -> None:
        """Deliver SIGINT, SIGTERM, SIGKILL, SIGQUIT or SIGHUP to the session's process group; ValueError for others."""
        self._check_input()
        given: Any = signal  # a number is refused with the names that there are
        await self._call(codec.PTY_SIGNAL, signal=given if isinstance(given, str) else repr(given))

    async def wait_exit(self, timeout_s: float | None = None) -> int:
        """Wait for the process to exit and return its exit code, 128+n for death by signal n.

        Raises TimeoutError after ``timeout_s`` seconds, SandboxPtyError when the session ended in another way. Up to
        16 MiB of output are kept meanwhile for later reads; a process that prints more waits to be read.
        """
        if not self._exit.done():
            self._at_home()
            with self._unread():
                await asyncio.wait([self._exit], timeout=_patience(timeout_s))
        if not self._exit.done():
            raise TimeoutError(f"PTY session {self._id} was still running after {timeout_s:g} s")
        self._check_life()
        return int(self._exit.result().json()["exit_code"])

    # ---------------------------------------------------------------- connection

    async def detach(self) -> None:
        """Drop the connection while the session goes on in the sandbox. Its last output is retained.

        Until :meth:`reattach`, reads and writes raise SandboxPtyError; reads that wait do so at once. Raises it when the
        session has ended.
        """
        async with self._moving:
            if self._detached:
                return
            self._check_input()
            self._detached = True
            self._wake()
            try:
                await self._call(codec.PTY_DETACH)
            except asyncio.CancelledError:
                raise  # it is detached all the same
            except BaseException:
                self._detached = False
                raise

    async def reattach(self) -> None:
        """Connect a detached session again and go on where the reading stopped, with what was printed since.

        More output than is retained is a SandboxPtyError of the read that reaches the gap. Takes the session over when
        somebody else holds it. Raises SandboxPtyError when the session has ended otherwise than by an exit.
        """
        async with self._moving:
            if self._closed:
                raise SandboxPtyError(f"PTY session {self._id} is closed")
            self._check_life()
            if not self._detached:
                return
            self._replay_offset = (await self._call(codec.PTY_REATTACH)).json().get("replay_offset")
            self._detached = False
            self._wake()

    async def run_detached(self, command: str, poll_interval_s: float = 15.0) -> tuple[bytes, int | None]:
        """Run one command of the session's shell, holding a connection only every ``poll_interval_s`` seconds.

        Gives its output as one stream, and its exit code, ``None`` when what the shell said of that can't be read. Ends
        attached. Raises SandboxPtyError when the session ends first, and when the command printed more than is retained
        between two looks. One command at a time can run in a session.
        """
        markers = Markers.new()
        output = MarkedOutput(markers)
        stderr = bytearray()
        await self.write(typed(command, markers))
        while not await self._look(output, stderr):
            try:
                await self.detach()
            except SandboxPtyError:  # the session has ended since: the next look reads its last words, and tells why
                continue
            await asyncio.sleep(poll_interval_s)
            await self.reattach()
        if self._mode == "pipe":
            with contextlib.suppress(TimeoutError):
                while chunk := await self.read_stderr(timeout_s=QUIET_S / 10):
                    stderr += chunk
        return output.output + bytes(stderr), output.status

    async def _look(self, output: MarkedOutput, stderr: bytearray) -> bool:
        """Read until the command has ended (True) or is quiet."""
        quiet_at = time.monotonic() + QUIET_S
        while not output.complete:
            try:
                # A terminal has no stderr; pipes are looked at in turns.
                if self._mode == "pipe":
                    with contextlib.suppress(TimeoutError):
                        stderr += await self.read_stderr(timeout_s=0)
                chunk = await self.read(timeout_s=QUIET_S if self._mode == "pty" else QUIET_S / 10)
            except TimeoutError:
                if time.monotonic() < quiet_at:
                    continue
                return output.has_status
            quiet_at = time.monotonic() + QUIET_S
            if not chunk:
                if output.has_status:
                    return True
                raise SandboxPtyError(f"PTY session {self._id} ended before the command finished")
            output.feed(chunk)
        return True

    async def close(self) -> None:
        """Release the session: one that was created here is ended, an attached one lives on. Repeating is harmless.

        Reads that wait raise SandboxPtyError. One whose event loop is closed is released without waiting for its end.
        """
        if self._exit.get_loop().is_closed():
            self._close_behind()
            return
        self._at_home()
        first = self._closing is None
        if self._closing is None:
            self._closed = True
            self._closing = self._bridge.start(codec.PTY_CLOSE, codec.encode({"terminal": self._terminal.number}))
            self._wake()
        await asyncio.wait([self._closing])
        self._bridge.unwatch(*self._terminal.streams)
        if first and self._closing.result().status != 0:
            raise failure(self._closing.result(), codec.PTY_CLOSE)

    def _close_behind(self) -> None:
        """End the session for a loop that hears of nothing any more."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the library has let go of it with its loop
                self._bridge.start(codec.PTY_CLOSE, codec.encode({"terminal": self._terminal.number}))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.close()

    def _wake(self) -> None:
        for output in self._outputs:
            output.wake()
        self._input.wake()

    async def _call(self, op: int, **fields: Any) -> Reply:
        self._at_home()
        reply = await self._bridge.call(op, codec.encode({"terminal": self._terminal.number, **fields}))
        if reply.status != 0:
            raise failure(reply, op)
        return reply
