"""Joins the library to asyncio: one bridge per event loop. Nothing else here or elsewhere knows how."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from . import codec
from .codec import EVENT, Reply
from .lib import EAGAIN, Library, library

__all__ = ["Bridge", "running_bridge"]

Opened: TypeAlias = Callable[[int, int], None]
"""Called with the command's descriptor (0, 1 or 2) and the handle of its stream, before the command starts."""

Undo: TypeAlias = "Callable[[Reply], asyncio.Future[Reply] | None]"
"""Takes back a success that nobody wants any more; gives what to wait for, if anything."""

CANCEL_S = 10.0
"""How long a cancelled call waits for its operation to have ended, and then for it to be taken back."""

logger = logging.getLogger("nemo_gym_sandbox")
logger.addHandler(logging.NullHandler())
_core_logger = logger.getChild("core")


class Scratch:
    """Memory for what is read from a stream and copied out again before anybody else runs."""

    SIZE = 64 << 10

    def __init__(self) -> None:
        buffer = bytearray(self.SIZE)
        self.view: memoryview = memoryview(buffer)
        self.address: int = ctypes.addressof((ctypes.c_char * self.SIZE).from_buffer(buffer))


class Bridge:
    """The library as one event loop sees it. All methods are for that loop's thread.

    It holds the loop weakly: with the loop gone it is closed.
    """

    def __init__(self, lib: Library, loop: asyncio.AbstractEventLoop) -> None:
        self.lib = lib
        handle = lib.bridge_new()
        if handle < 0:
            raise lib.failure(handle, "no connection to the sandbox library")
        self._handle: int = handle
        self._fd: int = lib.bridge_fd(handle)
        self._loop = weakref.ref(loop)
        self._next = 1
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._early: dict[int, Reply] = {}
        self._opened: dict[int, Opened] = {}
        self._ready: dict[int, Callable[[], None]] = {}
        self._room: deque[asyncio.Future[None]] = deque()
        buffer = bytearray(codec.EVENT_MAX)
        self._view = memoryview(buffer)
        self._address = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
        loop.add_reader(self._fd, self._on_events)
        self.scratch: Scratch = Scratch()
        self._finalizer = weakref.finalize(loop, lib.bridge_close, handle)
        self._finalizer.atexit = False

    def close(self) -> None:
        """End it; what is in flight is cancelled, and nobody is told."""
        self._finalizer()

    def forget_descriptor(self) -> None:
        """In a forked child: close the copy of the descriptor, without reading what belongs to the parent."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        return loop

    async def call(
        self, op: int, request: bytes = b"", *, undo: Undo | None = None, opened: Opened | None = None
    ) -> Reply:
        """Run an operation to its end.

        When the task is cancelled the operation is ended and, if it had succeeded meanwhile, taken back by ``undo``;
        only then, or after a bound, CancelledError is raised.
        """
        try:
            while not (number := self._start(op, request, opened)):  # too many at once: others have to end first
                await self._wait_for_room()
        except RuntimeError:
            await self.unless_ended()
            raise
        future = self._waiting[number]
        try:
            return await future
        except asyncio.CancelledError:
            await self._abandon(number, future, undo)
            raise

    async def unless_ended(self) -> None:
        """Wait for ever when the interpreter is exiting: a loop that a daemon thread still runs has nobody to tell."""
        if self.lib.ended:
            await self.loop.create_future()

    def start(self, op: int, request: bytes = b"") -> asyncio.Future[Reply]:
        """Start an operation that nobody has to wait for."""
        number = self._start(op, request, None)
        if not number:
            raise self.lib.failure(EAGAIN, "the operation was not started")
        return self._waiting[number]

    def _start(self, op: int, request: bytes, opened: Opened | None) -> int:
        """Submit an operation and give its number, or 0 when there is no room for it."""
        number = self._next
        self._next = number + 1
        # Both are in place first: the library may answer before submit returns, though the loop sees it later.
        loop = self._loop()
        assert loop is not None, "somebody runs on it"
        self._waiting[number] = loop.create_future()
        if opened is not None:
            self._opened[number] = opened
        code = self.lib.submit(self._handle, number, op, request, len(request))
        if code == 0:
            return number
        del self._waiting[number]
        self._opened.pop(number, None)
        if code == EAGAIN:
            return 0
        raise self.lib.failure(code, "the operation was not started")

    async def _wait_for_room(self) -> None:
        turn: asyncio.Future[None] = self.loop.create_future()
        self._room.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_room(1)  # the turn goes to the next
            raise

    def _give_room(self, places: int) -> None:
        while places and self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
                places -= 1

    async def _abandon(self, number: int, future: asyncio.Future[Reply], undo: Undo | None) -> None:
        """End an operation whose task was cancelled."""
        if future.cancelled():
            early = self._early.pop(number, None)
            future = self.loop.create_future()
            if early is not None:
                future.set_result(early)
            else:
                self._waiting[number] = future
                if self.lib.cancel(self._handle, number) < 0:
                    return  # the library has been shut down: no reply will come
                await _outlast(future, CANCEL_S)
        # Else the reply came in the same turn as the cancellation.
        if undo is None:
            return
        if not future.done():
            future.add_done_callback(lambda late: _take_back(undo, late))
            return
        rest = _take_back(undo, future)
        if rest is not None:
            await _outlast(rest, CANCEL_S)

    # ---------------------------------------------------------------- streams

    def watch(self, stream: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` when a stream has something to read, or takes bytes again."""
        self._ready[stream] = ready

    def unwatch(self, *streams: int) -> None:
        """Forget who watches streams that are freed in another way."""
        for stream in streams:
            self._ready.pop(stream, None)

    def close_stream(self, stream: int) -> None:
        """Free a stream."""
        self._ready.pop(stream, None)
        self.lib.stream_close(stream)

    # ---------------------------------------------------------------- events

    def _on_events(self) -> None:
        """Take one batch, which the library bounds; the descriptor stays readable while there is more."""
        size = self.lib.drain(self._handle, self._address, codec.EVENT_MAX)
        if size <= 0:
            if size < 0:  # the library was shut down: the process is ending
                loop = self._loop()
                if loop is not None and not loop.is_closed():
                    loop.remove_reader(self._fd)
            return
        view, unpack, waiting = self._view, EVENT.unpack_from, self._waiting
        at = done = 0
        while at < size:
            ident, length, kind, _flags, status, aux = unpack(view, at)
            at += EVENT.size
            if kind == codec.DONE:
                done += 1
                future = waiting.pop(ident, None)
                if self._opened:
                    self._opened.pop(ident, None)
                if future is not None:
                    reply = Reply(status, aux, bytes(view[at : at + length]) if length else b"")
                    if not future.done():
                        future.set_result(reply)
                    elif future.cancelled():  # its task has not run yet, and will look here
                        self._early[ident] = reply
            elif kind in (codec.READABLE, codec.WRITABLE):
                ready = self._ready.get(ident)
                if ready is not None:
                    ready()
            elif kind == codec.STREAM_OPEN:
                opened = self._opened.get(ident)
                stream = int.from_bytes(view[at : at + 8], "little")
                if opened is None:
                    self.lib.stream_close(stream)
                else:
                    opened(aux, stream)
            elif kind == codec.LOG:
                _log(bytes(view[at : at + length]))
            at += length + 7 & ~7
        if self._room:
            self._give_room(done)


async def _outlast(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait for a future, also when the task is cancelled again, but not longer than a bound."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not future.done() and (left := deadline - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future], timeout=left)


def _take_back(undo: Undo, future: asyncio.Future[Reply]) -> asyncio.Future[Reply] | None:
    if future.cancelled() or future.result().status != 0:
        return None
    return undo(future.result())


def _log(payload: bytes) -> None:
    record = json.loads(payload)
    # slog counts -4, 0, 4, 8 where logging counts 10, 20, 30, 40.
    _core_logger.log(max(20 + record["level"] * 5 // 2, 1), "%s", record["message"])


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def running_bridge() -> Bridge:
    """The bridge of the running event loop, made at the first call.

    Raises RuntimeError without a running loop and in a forked child.
    """
    lib = library()
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _new_bridge(lib, loop)
    return bridge


def _new_bridge(lib: Library, loop: asyncio.AbstractEventLoop) -> Bridge:
    with _lock:
        if _forget_descriptors not in lib.after_fork:
            lib.after_fork.append(_forget_descriptors)
        # A loop that was closed with operations in flight is kept alive by their futures: end those.
        for closed in [other for other in _bridges if other.is_closed()]:
            _bridges.pop(closed).close()
        bridge = Bridge(lib, loop)
        _bridges[loop] = bridge
        return bridge


def _forget_descriptors() -> None:
    for bridge in list(_bridges.values()):
        bridge.forget_descriptor()
