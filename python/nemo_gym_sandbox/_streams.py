"""Between the text that callers see and the bytes that providers move: output callbacks and input sources."""

from __future__ import annotations

import asyncio
import codecs
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from nemo_gym_sandbox.providers.base import StdinSource

TextCallback: TypeAlias = Callable[[str], Awaitable[object] | object]
"""Receives output text in order. An awaitable it returns is awaited before the next piece."""

Stdin: TypeAlias = bytes | bytearray | memoryview | str | AsyncIterable[bytes] | Iterable[bytes]
"""What a command reads: everything at once, or pieces in order."""


class TextFeed:
    """Feeds one channel's bytes to a text callback, decoding as they come.

    A character split over chunks arrives whole; bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, callback: TextCallback) -> None:
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        """Pass a chunk on. An awaitable comes back only when the callback is asynchronous."""
        return self._deliver(self._decoder.decode(data))

    async def finish(self) -> None:
        """Deliver what is left of a character that never became complete."""
        rest = self._deliver(self._decoder.decode(b"", final=True))
        if rest is not None:
            await rest

    def _deliver(self, text: str) -> Awaitable[None] | None:
        if not text:
            return None
        answer = self._callback(text)
        return cast("Awaitable[None]", answer) if inspect.isawaitable(answer) else None


def stdin_source(stdin: Stdin) -> StdinSource:
    """Bring what the caller gave as input into the form that providers take.

    Raises TypeError for anything that is neither bytes, text, nor an iterable of bytes.
    """
    given: Any = stdin
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _chunk(cast("object", given))
    if isinstance(given, AsyncIterable):
        return _checked(cast("AsyncIterable[object]", given))
    if isinstance(given, Iterable):
        return _from_iterable(cast("Iterable[object]", given))
    raise TypeError(f"stdin must be bytes, str or an iterable of bytes, not {type(given).__name__}")


def _chunk(value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", value))
    raise TypeError(f"stdin must yield bytes, not {type(value).__name__}")


async def _checked(source: AsyncIterable[object]) -> AsyncIterator[bytes]:
    async for value in source:
        yield _chunk(value)


async def _from_iterable(source: Iterable[object]) -> AsyncIterator[bytes]:
    if isinstance(source, (list, tuple)):
        for value in source:
            yield _chunk(value)
        return
    # A generator or an open file may block, which the event loop must not.
    iterator: Iterator[object] = iter(source)
    end = object()
    while (value := await asyncio.to_thread(next, iterator, end)) is not end:
        yield _chunk(value)
