"""Moves the bytes of commands: output to callbacks as it arrives, input to a command, and large results into text."""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import inspect
import sys
from typing import TYPE_CHECKING, Any

from .lib import ECLOSED, EEOF

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable

    from ..providers.base import OutputCallback, StdinSource
    from .loop import Bridge

__all__ = ["feed", "pump", "read_text"]

CHUNK = 64 << 10
"""The most that a callback gets at once, and so the most that is copied in one turn of the loop."""

COPY = 1 << 20
"""How much of a finished output is copied in one turn of the loop: about half a millisecond."""


class _Edge:
    """Waits for a stream's next event."""

    def __init__(self, bridge: Bridge, stream: int) -> None:
        self._came = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = bridge.loop
        bridge.watch(stream, self._ready)

    def _ready(self) -> None:
        self._came = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        if not self._came:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._came = False


async def deliver(callback: OutputCallback, chunk: bytes) -> None:
    """Give a chunk to a callback, and wait for it if it wants that."""
    result = callback(chunk)
    if inspect.isawaitable(result):
        await result


async def pump(bridge: Bridge, stream: int, callback: OutputCallback) -> None:
    """Deliver a stream to a callback until its end, then free it.

    The next chunk is read when the callback is done with the last, so a slow one slows the command down. When the
    callback raises, the command sees a closed pipe.
    """
    edge = _Edge(bridge, stream)
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    address = ctypes.addressof((ctypes.c_char * CHUNK).from_buffer(buffer))
    try:
        while True:
            size = bridge.lib.stream_read(stream, address, CHUNK)
            if size > 0:
                await deliver(callback, bytes(view[:size]))
                await asyncio.sleep(0)
            elif size == 0:
                await edge.wait()
            elif size == EEOF:
                return
            else:
                await bridge.unless_ended()
                raise bridge.lib.failure(size, "the output of a command can't be read")
    finally:
        bridge.close_stream(stream)


async def feed(bridge: Bridge, stream: int, source: StdinSource) -> None:
    """Write a command's input from a source, then end it. A command that stops reading is no error."""
    edge = _Edge(bridge, stream)
    try:
        if isinstance(source, (bytes, bytearray, memoryview)):
            await _feed_bytes(bridge, stream, edge, bytes(source))
        else:
            await _feed_chunks(bridge, stream, edge, source)
    finally:
        bridge.close_stream(stream)


async def _feed_chunks(bridge: Bridge, stream: int, edge: _Edge, source: AsyncIterable[bytes]) -> None:
    async for chunk in source:
        if not isinstance(chunk, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"stdin must give bytes, not {type(chunk).__name__}")
        if not await _feed_bytes(bridge, stream, edge, bytes(chunk)):
            return


async def _feed_bytes(bridge: Bridge, stream: int, edge: _Edge, data: bytes) -> bool:
    """Write all of data; False when the command reads no more."""
    at = 0
    while at < len(data):
        piece = data[at : at + CHUNK] if at or len(data) > CHUNK else data
        size = bridge.lib.stream_write(stream, piece, len(piece))
        if size == ECLOSED:
            return False
        if size < 0:
            await bridge.unless_ended()
            raise bridge.lib.failure(size, "the input of a command can't be written")
        at += size
        if size < len(piece):
            await edge.wait()
        elif at < len(data):
            await asyncio.sleep(0)
    return True


async def read_text(bridge: Bridge, stream: int, size: int, ascii_only: bool) -> str:
    """Read a finished output of ``size`` bytes and free it. What is no UTF-8 becomes replacement characters."""
    try:
        if ascii_only and _new_ascii is not None:
            text, address = _new_ascii(size)
            await _copy(bridge, stream, address, size)
            return text
        return await _decode(bridge, stream, size)
    finally:
        bridge.close_stream(stream)


async def _copy(bridge: Bridge, stream: int, address: int, size: int) -> None:
    at = 0
    while at < size:
        got = bridge.lib.stream_read(stream, address + at, min(size - at, COPY))
        if got <= 0:
            await bridge.unless_ended()
            raise bridge.lib.failure(got, f"the output of a command ended {size - at} bytes early")
        at += got
        await asyncio.sleep(0)


async def _decode(bridge: Bridge, stream: int, size: int) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    buffer = bytearray(min(size, COPY))
    view = memoryview(buffer)
    address = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    parts: list[str] = []
    left = size
    while left:
        piece = min(left, COPY)
        await _copy(bridge, stream, address, piece)
        left -= piece
        parts.append(decoder.decode(view[:piece], final=not left))
    return "".join(parts)


def _ascii_maker() -> Callable[[int], tuple[str, int]] | None:
    """A function that makes a new ``str`` and gives the address of its characters, where Python allows that.

    A large output is then copied once, from the library straight to where it stays.
    """
    if sys.implementation.name != "cpython":
        return None
    new: Any = ctypes.pythonapi["PyUnicode_New"]
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32]
    # For a string of ASCII this is the address of its own characters, not a copy.
    characters: Any = ctypes.pythonapi["PyUnicode_AsUTF8AndSize"]
    characters.restype = ctypes.c_void_p
    characters.argtypes = [ctypes.py_object, ctypes.c_void_p]

    def make(size: int) -> tuple[str, int]:
        text: str = new(size, 127)
        return text, characters(text, None)

    return make


_new_ascii = _ascii_maker()
