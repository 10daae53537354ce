"""The container engine's own API over its unix socket, with as little in between as asyncio allows.

This is the floor for a backend on that engine: no retries, no checks, no mapping of errors.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from typing import Any
from urllib.parse import quote

_PIECE = 1 << 20


def socket_path() -> str:
    """Where the engine listens: DOCKER_HOST when it names a unix socket, else the usual place."""
    host = os.environ.get("DOCKER_HOST", "")
    return host.removeprefix("unix://") if host.startswith("unix://") else "/var/run/docker.sock"


class EngineError(RuntimeError):
    """The engine answered with an error."""


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.chunked = False
        self.length = 0

    async def request(self, method: str, path: str, body: Any = None, *, size: int = 0, upgrade: bool = False) -> int:
        """Send a request and read the head of the answer. With ``size`` the caller has to send that many bytes itself
        and then call ``head``; the result is then 0."""
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: "
        head += f"{'application/x-tar' if size else 'application/json'}\r\nContent-Length: {size or len(payload)}\r\n"
        head += "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n" if upgrade else "\r\n"
        self.writer.write(head.encode() + payload)
        return 0 if size else await self.head()

    async def head(self) -> int:
        """Read the status line and the headers; gives the status."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self.chunked = headers.get("transfer-encoding") == "chunked"
        self.length = int(headers.get("content-length", "0"))
        status = int(lines[0].split()[1])
        if status >= 400:
            raise EngineError(f"{lines[0]}: {(await self.body()).decode(errors='replace')}")
        return status

    async def body(self) -> bytes:
        """Read the whole answer."""
        if not self.chunked:
            return await self.reader.readexactly(self.length)
        pieces: list[bytes] = []
        while piece := await self.chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked answer, b"" at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return piece

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class Engine:
    """A client that keeps idle connections."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []

    async def open(self) -> Connection:
        """Get an idle connection or a new one."""
        if self._idle:
            return self._idle.pop()
        return Connection(*await asyncio.open_unix_connection(socket_path(), limit=1 << 18))

    def keep(self, connection: Connection) -> None:
        """Give back a connection whose answer was read to the end."""
        self._idle.append(connection)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request with a JSON answer; None for an empty one."""
        connection = await self.open()
        await connection.request(method, path, body)
        raw = await connection.body()
        self.keep(connection)
        return json.loads(raw) if raw else None

    async def create(self, image: str) -> str:
        """Make and start a container that does nothing; gives its id."""
        body = {"Image": image, "Entrypoint": ["sleep"], "Cmd": ["86400"]}
        made = await self.call("POST", "/containers/create", body)
        await self.call("POST", f"/containers/{made['Id']}/start")
        return made["Id"]

    async def remove(self, container: str) -> None:
        """Kill and remove a container."""
        await self.call("DELETE", f"/containers/{container}?force=1&v=1")

    async def exec(self, container: str, command: str, keep: bool) -> tuple[int, int, bytes]:
        """Run a command; gives its exit code, the number of bytes it printed, and with ``keep`` the bytes."""
        body = {"AttachStdout": True, "AttachStderr": True, "Cmd": ["sh", "-c", command]}
        made = await self.call("POST", f"/containers/{container}/exec", body)
        stream = await self.open()
        try:
            await stream.request("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}, upgrade=True)
            total, pieces = 0, list[bytes]()
            while head := await stream.reader.read(8):
                if len(head) < 8:
                    head += await stream.reader.readexactly(8 - len(head))
                left = int.from_bytes(head[4:])
                total += left
                while left:
                    piece = await stream.reader.read(min(left, _PIECE))
                    if not piece:
                        raise EngineError("the stream ended early")
                    left -= len(piece)
                    if keep:
                        pieces.append(piece)
        finally:
            stream.close()
        state = await self.call("GET", f"/exec/{made['Id']}/json")
        return state["ExitCode"], total, b"".join(pieces)

    async def upload(self, container: str, local: str, name: str) -> None:
        """Put a local file into /tmp of a container, as an archive of one file."""
        size = os.stat(local).st_size
        entry = tarfile.TarInfo(name)
        entry.size = size
        padding = -size % 512 + 1024
        connection = await self.open()
        path = f"/containers/{container}/archive?path={quote('/tmp')}"
        await connection.request("PUT", path, size=512 + size + padding)
        connection.writer.write(entry.tobuf(tarfile.USTAR_FORMAT))
        with open(local, "rb") as f:  # noqa: ASYNC230 - page cache
            while piece := f.read(_PIECE):
                connection.writer.write(piece)
                await connection.writer.drain()
        connection.writer.write(bytes(padding))
        await connection.head()
        await connection.body()
        self.keep(connection)

    async def write(self, container: str, files: dict[str, str]) -> None:
        """Make small files in a container, by one archive."""
        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name.removeprefix("/"))
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        connection = await self.open()
        await connection.request("PUT", f"/containers/{container}/archive?path=/", size=len(whole.getvalue()))
        connection.writer.write(whole.getvalue())
        await connection.head()
        await connection.body()
        self.keep(connection)

    async def download(self, container: str, remote: str, local: str) -> None:
        """Get a file of a container: an archive whose first block is a header."""
        connection = await self.open()
        await connection.request("GET", f"/containers/{container}/archive?path={quote(remote)}")
        buffered, left = b"", -1
        with open(local, "wb") as f:  # noqa: ASYNC230 - page cache
            while piece := await connection.chunk():
                if left < 0:
                    buffered += piece
                    if len(buffered) < 512:
                        continue
                    left = int(buffered[124:135], 8)
                    piece = buffered[512:]
                f.write(piece[:left])
                left -= min(left, len(piece))
        self.keep(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
