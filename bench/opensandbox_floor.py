"""The least that a client of the daemon can do: plain blocking sockets, no event loop, nothing looked at that need not be."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DAEMON_PORT = 44772
THREADS = 64
ECHO = "stty raw -echo; printf ready; exec cat"
"""The program of a terminal that gives back each key."""
BODY = b'{"command":"true"}'


class Connection:
    """A connection to a daemon that is kept."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._from: BinaryIO = self._socket.makefile("rb")
        self._host = f"{host}:{port}".encode()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, count: int) -> bytes:
        return self._from.read(count)

    def head(self, method: bytes, path: bytes, more: bytes = b"", body: bytes = b"") -> list[bytes]:
        """Make a request; gives the lines of the answer's head."""
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
        self.send(b"%s %s HTTP/1.1\r\nHost: %s\r\n%s%s\r\n%s" % (method, path, self._host, length, more, body))
        lines: list[bytes] = []
        while (line := self._from.readline()) != b"\r\n":
            if not line:
                raise RuntimeError("the daemon hung up")
            lines.append(line.lower())
        return lines

    def true(self) -> None:
        """Run ``true``."""
        self.head(b"POST", b"/command", body=BODY)
        told = b""
        while size := int(self._from.readline(), 16):
            told += self.read(size + 2)
        self._from.readline()
        if b"execution_complete" not in told:
            raise RuntimeError(f"true failed: {told!r}")

    def close(self) -> None:
        self._from.close()
        self._socket.close()


class FloorTerminal:
    """A terminal whose program has said that it is ready."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def output(self) -> bytes:
        """What is printed next."""
        while True:
            kind, size = self._connection.read(2)
            if size == 126:
                size = int.from_bytes(self._connection.read(2))
            data = self._connection.read(size)
            if kind == 0x82:
                return data[9:] if data[0] == 3 else data[1:]  # a replay has an offset in front

    async def key(self, key: bytes) -> bytes:
        self._connection.send(bytes([0x82, 0x80 | (1 + len(key)), 0, 0, 0, 0, 0]) + key)  # masked with nothing
        return self.output()

    async def close(self) -> None:
        self._connection.close()


class Floor:
    """No client at all, nearly."""

    def __init__(self, at: list[tuple[str, int]]) -> None:
        self._at = at
        self._idle: list[list[Connection]] = [[] for _ in at]
        self._threads = ThreadPoolExecutor(THREADS)

    @classmethod
    async def connect(cls, url: str, api_key: str, ids: list[str]) -> Floor:
        def find(box: str) -> tuple[str, int]:
            request = urllib.request.Request(
                f"{url}/v1/sandboxes/{box}/endpoints/{DAEMON_PORT}", headers={"OPEN-SANDBOX-API-KEY": api_key}
            )
            with urllib.request.urlopen(request) as answer:
                host, _, port = str(json.load(answer)["endpoint"]).partition("/")[0].partition(":")
            return host, int(port)

        return cls([await asyncio.to_thread(find, box) for box in ids])

    def run(self, box: int) -> None:
        """Run ``true`` in the sandbox of that number, and wait."""
        try:
            connection = self._idle[box].pop()
        except IndexError:
            connection = self._dial(box)
        connection.true()
        self._idle[box].append(connection)

    def _dial(self, box: int) -> Connection:
        """Connect to the daemon itself, at the end of the port that the engine forwards."""
        host, port = self._at[box]
        return Connection(host, port)

    async def exec(self, box: int) -> None:
        self.run(box)

    def in_threads(self, next_box: Callable[[], int]) -> Callable[[], Awaitable[None]]:
        """The same for many at a time."""
        return lambda: asyncio.get_running_loop().run_in_executor(self._threads, lambda: self.run(next_box()))

    async def terminal(self) -> FloorTerminal:
        connection = self._dial(0)
        head = connection.head(b"POST", b"/pty", body=json.dumps({"command": ECHO}).encode())
        length = next(int(line.split(b":")[1]) for line in head if line.startswith(b"content-length"))
        session = json.loads(connection.read(length))["session_id"]
        connection.head(
            b"GET",
            f"/pty/{session}/ws".encode(),
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        )
        terminal = FloorTerminal(connection)
        got = b""
        while not got.endswith(b"ready"):
            got += terminal.output()
        return terminal

    async def close(self) -> None:
        self._threads.shutdown()
        for idle in self._idle:
            for connection in idle:
                connection.close()
