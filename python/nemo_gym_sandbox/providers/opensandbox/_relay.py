"""Hands a caller's own websocket to the library, which speaks the protocol of sessions and not this module.

The library connects to a listener of this process, and what it sends and receives there passes through the caller's
websocket. When it comes back after a loss, or asks for the session's state, the caller's client does that, with its own
settings. Frames pass as they are but for two things. The caller may have read the greeting of the websocket already: the
library is greeted here, and a greeting that arrives is told to the session. And the caller may have begun anywhere in the
session's output: offsets count from there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from nemo_gym_sandbox.providers.opensandbox._frames import BINARY, CLOSE, TEXT, Frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["Listener", "PtyWebSocket", "SocketRelay", "request"]

_REPLAY: Final = 3  # the channel
_REFUSED: Final = 1008
_GONE: Final = (1005, 1006)  # what says that no close code came
_HEARTBEAT_S: Final = 30.0
_GOODBYE_S: Final = 1.0
_LONGEST_HEAD: Final = 64 << 10
_ACCEPT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MESSAGE_TYPES: Final = (1, 2)  # text and bytes, as aiohttp numbers them

# The library tries again after the second.
_NOTHING: Final = 501
_UNREACHABLE: Final = 502
_ATTACHED: Final = "the PTY session already has an attached client"


class PtyWebSocket(Protocol):
    """What is asked of a caller's websocket; those of aiohttp have it. Iterating gives messages with ``type`` and ``data``."""

    @property
    def close_code(self) -> int | None:
        """Why it has ended, once it has."""
        ...

    def __aiter__(self) -> AsyncIterator[Any]:
        """Its messages up to its end."""
        ...

    async def send_bytes(self, data: bytes, /) -> None:
        """Send a binary message."""
        ...

    async def send_str(self, data: str, /) -> None:
        """Send a text message."""
        ...

    async def close(self) -> Any:
        """End it."""
        ...


class Listener(Protocol):
    """Who hears of the first websocket."""

    def greeted(self, mode: str | None) -> None:
        """It is attached to the session."""
        ...

    def refused(self, reason: str) -> None:
        """It ended before it was."""
        ...

    def replayed(self, offset: int) -> None:
        """Retained output begins at an offset."""
        ...


class SocketRelay:
    """Serves one session to the library."""

    def __init__(
        self,
        client: Any,
        ws: PtyWebSocket,
        session_url: str,
        headers: dict[str, str],
        timeout_s: float,
        listener: Listener,
    ) -> None:
        self._client = client
        self._first: PtyWebSocket = ws
        self._taken = False  # the first one
        self._url = session_url
        self._headers = headers
        self._timeout_s = timeout_s
        self._listener = listener
        self._base: int | None = None  # the offset that is the library's 0
        self._secret = secrets.token_urlsafe(24)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._open: set[PtyWebSocket] = {ws}

    async def start(self) -> str:
        """Listen, and give the address to dial. Nobody else knows its path."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/{self._secret}"

    async def stop(self) -> None:
        """Serve no more, and close all websockets, the caller's too. Repeating is harmless."""
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        while self._open:
            await self._close(self._open.pop())

    async def _close(self, ws: PtyWebSocket) -> None:
        with contextlib.suppress(Exception):  # it may be broken
            await ws.close()
        self._open.discard(ws)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # by stop(), which has nobody to tell
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # the library went away
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        path, _, query = target.partition("?")
        _, secret, _ = path.split("/", 2)
        if not secrets.compare_digest(secret.encode(), self._secret.encode()):
            return
        if "sec-websocket-key" not in fields:
            status, body = await self._ask(method)
            await _answer(writer, status, body)
            return
        first, self._taken = not self._taken, True
        try:
            ws = self._first if first else await self._dial(query)
        except Exception as error:
            # A status that the server has given says more than that there was no connection.
            await _answer(writer, getattr(error, "status", None) or _UNREACHABLE, b"")
            return
        if ws is None:
            await _answer(writer, _NOTHING, b"")
            return
        key = fields["sec-websocket-key"].encode() + _ACCEPT
        accept = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest()).decode()
        upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}"
        writer.write(f"HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n\r\n".encode())
        await self._join(ws, first, Frames(reader, writer))

    async def _ask(self, method: str) -> tuple[int, bytes]:
        """The library asks for the session's state."""
        running = json.dumps({"running": True, "output_offset": 0}).encode()
        if not self._taken or method != "GET":
            return 200, running
        with contextlib.suppress(Exception):
            status, body = await request(self._client, "get", self._url, self._headers)
            if status == 200 and self._base:
                state = cast("dict[str, Any]", json.loads(body))
                body = json.dumps({**state, "output_offset": max(0, state["output_offset"] - self._base)}).encode()
            return status, body
        return 200, running  # that can't be known here; the attaching tells

    async def _dial(self, query: str) -> PtyWebSocket | None:
        dial = getattr(self._client, "ws_connect", None)
        if dial is None:
            return None
        asked = dict(urllib.parse.parse_qsl(query))
        since = int(asked.pop("since", 0)) + (self._base or 0)
        if since:
            asked["since"] = str(since)
        url = f"{self._url}/ws?{urllib.parse.urlencode(asked)}"
        async with asyncio.timeout(self._timeout_s):
            ws: PtyWebSocket = await dial(url, headers=self._headers, heartbeat=_HEARTBEAT_S)
            self._open.add(ws)
        return ws

    async def _join(self, ws: PtyWebSocket, first: bool, library: Frames) -> None:
        """Pass frames both ways until one side ends."""
        if first:
            await library.send(TEXT, b'{"type":"connected","mode":"pty"}')
        here = asyncio.create_task(self._to_library(ws, first, library))
        there = asyncio.create_task(self._to_caller(ws, library))
        try:
            await asyncio.wait([here, there], return_when=asyncio.FIRST_COMPLETED)
            if here.done() and not here.cancelled() and here.exception() is None and here.result():
                await asyncio.wait([there], timeout=_GOODBYE_S)  # the library hangs up once it has read why
        finally:
            for task in (here, there):
                task.cancel()
            await asyncio.gather(here, there, return_exceptions=True)
            await self._close(ws)

    async def _to_library(self, ws: PtyWebSocket, first: bool, library: Frames) -> bool:
        """Pass what arrives. True when the library was told why it ends."""
        waiting = first  # for the greeting
        with contextlib.suppress(Exception):  # whatever a caller's websocket raises, it is lost
            async for message in ws:
                data = _data(message)
                if isinstance(data, str):
                    about = _control(data)
                    if about.get("type") == "connected":
                        self._listener.greeted(about.get("mode"))
                        if waiting:
                            waiting = False
                            continue
                    if waiting and about.get("type") in ("exit", "error"):
                        self._listener.refused(f"it sent {about['type']!r} first")
                    await library.send(TEXT, data.encode())
                elif data is not None:
                    await library.send(BINARY, self._placed(data))
        code = ws.close_code
        if waiting:
            self._listener.refused(f"close code {code}")
            if code == _REFUSED:
                refusal = {"type": "error", "code": "REFUSED", "error": _ATTACHED}
                await library.send(TEXT, json.dumps(refusal).encode())
                return True
        if code is None or code in _GONE:
            return False
        await library.send(CLOSE, code.to_bytes(2, "big"))
        return True

    def _placed(self, data: bytes) -> bytes:
        """Count a replay's offset from where the caller began."""
        if self._base is None and data:
            self._base = int.from_bytes(data[1:9], "big") if data[0] == _REPLAY and len(data) >= 9 else 0
        if data[:1] != bytes([_REPLAY]) or len(data) < 9:
            return data
        offset = int.from_bytes(data[1:9], "big")
        self._listener.replayed(offset)
        return data[:1] + max(0, offset - (self._base or 0)).to_bytes(8, "big") + data[9:]

    @staticmethod
    async def _to_caller(ws: PtyWebSocket, library: Frames) -> None:
        async for opcode, data in library.messages():
            if opcode == TEXT:
                await ws.send_str(data.decode())
            else:
                await ws.send_bytes(data)


def _data(message: Any) -> str | bytes | None:
    """What a message says; ``None`` for what says nothing about the session."""
    kind: object = getattr(message, "type", None)
    if isinstance(kind, int) and kind not in _MESSAGE_TYPES:
        return None
    data: object = getattr(message, "data", message)
    if isinstance(data, (bytearray, memoryview)):
        return bytes(cast("bytes", data))
    return data if isinstance(data, (str, bytes)) else None


def _control(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        about: object = json.loads(text)
        if isinstance(about, dict):
            return cast("dict[str, Any]", about)
    return {}


async def _answer(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    writer.write(f"HTTP/1.1 {status} -\r\n{fields}\r\n\r\n".encode() + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def request(client: Any, method: str, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Make a request with a caller's client. NotImplementedError when it can make none."""
    ask: Callable[..., Any] | None = getattr(client, method, None)
    if ask is None:
        raise NotImplementedError(f"{type(client).__name__} makes no requests")
    asked = ask(url, headers=headers)
    if hasattr(asked, "__aenter__"):
        async with asked as response:
            return int(response.status), await response.read()
    response = await asked
    return int(response.status), await response.read()
