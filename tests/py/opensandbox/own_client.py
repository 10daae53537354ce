"""A caller's own HTTP client and websockets, with the face that aiohttp gives them, as far as sessions need it."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Message(NamedTuple):
    type: int
    data: Any


class Response:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    async def read(self) -> bytes:
        return self._body


class HandshakeError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class WebSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.close_code: int | None = None
        self.closes = 0

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while True:
                head, size = await self._reader.readexactly(2)
                if size >= 126:
                    size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
                data = await self._reader.readexactly(size)
                kind = head & 0x0F
                if kind == PING:
                    self._send(PONG, data)
                elif kind == CLOSE:
                    self.close_code = int.from_bytes(data[:2], "big")
                    return
                elif kind != PONG:
                    yield Message(kind, data.decode() if kind == TEXT else data)
        except (EOFError, OSError):
            self.close_code = 1006

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        if size >= 1 << 16:
            length = b"\xff" + size.to_bytes(8, "big")
        self._writer.write(bytes([0x80 | kind]) + length + bytes(4) + data)  # a mask of zeros changes nothing

    async def send_bytes(self, data: bytes) -> None:
        self._send(BINARY, data)
        await self._writer.drain()

    async def send_str(self, data: str) -> None:
        self._send(TEXT, data.encode())
        await self._writer.drain()

    async def close(self) -> None:
        self.closes += 1
        if not self._writer.is_closing():
            self._send(CLOSE, (1000).to_bytes(2, "big"))
            self._writer.close()

    def cut(self) -> None:
        """Lose the connection."""
        self._writer.transport.abort()


class Asked:
    """A request that is made when it is entered."""

    def __init__(self, client: OwnClient, method: str, url: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._work = client.exchange(method, url, headers, body)

    async def __aenter__(self) -> Response:
        return await self._work

    async def __aexit__(self, *_: object) -> None:
        pass


class OwnClient:
    def __init__(self) -> None:
        self.closed = 0
        self.asked: list[str] = []
        self.sockets: list[WebSocket] = []
        self.came_back = asyncio.Event()  # with another websocket than the first

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.closed += 1

    def get(self, url: str, *, headers: dict[str, str]) -> Asked:
        return Asked(self, "GET", url, headers)

    def delete(self, url: str, *, headers: dict[str, str]) -> Asked:
        return Asked(self, "DELETE", url, headers)

    def post(self, url: str, *, headers: dict[str, str], data: bytes) -> Asked:
        return Asked(self, "POST", url, headers, data)

    async def ws_connect(self, url: str, *, headers: dict[str, str], heartbeat: float | None = None) -> WebSocket:
        assert heartbeat is None or heartbeat > 0
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        status, reader, writer = await self._begin("GET", url, {**headers, **upgrade, "Sec-WebSocket-Key": key}, b"")
        if status != 101:
            writer.close()
            raise HandshakeError(status)
        self.sockets.append(WebSocket(reader, writer))
        if len(self.sockets) > 1:
            self.came_back.set()
        return self.sockets[-1]

    async def exchange(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        status, reader, writer = await self._begin(method, url, {**headers, "Connection": "close"}, body)
        try:
            return Response(status, await reader.read())
        finally:
            writer.close()

    async def _begin(
        self, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(url)
        assert parts.hostname
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.asked.append(f"{method} {target.rpartition('/pty')[2]}")
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        fields = {"Host": parts.netloc, **headers, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
            status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
        except BaseException:
            writer.close()
            raise
        return status, reader, writer
