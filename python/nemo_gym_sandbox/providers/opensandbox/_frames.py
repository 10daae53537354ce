"""The server's side of a websocket, as far as the library needs one: whole messages, a good-bye, and signs of life."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

__all__ = ["BINARY", "CLOSE", "TEXT", "Frames"]

TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10


class Frames:
    """The library's websocket, from its server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, opcode: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            length = bytes([size])
        elif size < 1 << 16:
            length = b"\x7e" + size.to_bytes(2, "big")
        else:
            length = b"\x7f" + size.to_bytes(8, "big")
        self._writer.write(bytes([0x80 | opcode]) + length + data)
        await self._writer.drain()

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """What the library sends, up to its good-bye, which is answered."""
        read = self._reader.readexactly
        whole, kind = b"", 0
        with contextlib.suppress(EOFError):
            while True:
                head, size = await read(2)
                size &= 0x7F
                if size >= 126:
                    size = int.from_bytes(await read(2 if size == 126 else 8), "big")
                mask = await read(4)  # clients mask what they send
                data = _unmasked(await read(size), mask)
                opcode = head & 0x0F
                if opcode == CLOSE:
                    await self.send(CLOSE, data[:2])
                    return
                if opcode == _PING:
                    await self.send(_PONG, data)
                elif opcode < CLOSE:
                    whole, kind = whole + data, opcode or kind
                    if head & 0x80:
                        yield kind, whole
                        whole = b""


def _unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
