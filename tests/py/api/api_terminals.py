"""Terminals as a user's provider could offer them: scripted ones, and real shells on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty as pty_module
import subprocess
from typing import TYPE_CHECKING, Any

from api_doubles import MemoryProvider

from nemo_gym_sandbox import SandboxHandle, SandboxPtyError, SandboxPtySpec

if TYPE_CHECKING:
    from collections.abc import Callable


class Session:
    """What all have in common: queues of output, an exit code, and a note of what was done."""

    def __init__(self, spec: SandboxPtySpec | None = None) -> None:
        self.spec = spec or SandboxPtySpec()
        self.session_id = f"session-{id(self)}"
        self.mode: str | None = "pty" if self.spec.pty else "pipe"
        self.closed = False
        self.closes = 0
        self.writes: list[bytes] = []
        self.out: asyncio.Queue[bytes] = asyncio.Queue()
        self.err: asyncio.Queue[bytes] = asyncio.Queue()
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def _next(self, queue: asyncio.Queue[bytes], timeout_s: float | None) -> bytes:
        async with asyncio.timeout(timeout_s):
            chunk = await queue.get()
        if not chunk:
            queue.put_nowait(b"")  # the end stays the end
        return chunk

    async def read(self, timeout_s: float | None = None) -> bytes:
        return await self._next(self.out, timeout_s)

    async def read_stderr(self, timeout_s: float | None = None) -> bytes:
        return await self._next(self.err, timeout_s)

    async def write(self, data: bytes) -> None:
        self.writes.append(data)

    async def resize(self, rows: int, cols: int) -> None:
        self.size = (rows, cols)

    async def send_signal(self, signal: str) -> None:
        self.signal = signal

    async def wait_exit(self, timeout_s: float | None = None) -> int:
        return await asyncio.wait_for(asyncio.shield(self.exit), timeout_s)

    async def close(self) -> None:
        self.closes += 1
        self.closed = True

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> bytes:
        if chunk := await self.read():
            return chunk
        raise StopAsyncIteration

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def end(self, code: int = 0) -> None:
        self.out.put_nowait(b"")
        self.err.put_nowait(b"")
        if not self.exit.done():
            self.exit.set_result(code)


class ScriptedShell(Session):
    """A shell that answers a typed command as ``answer(start, end)`` says; by default with ``hello`` and status 0."""

    def __init__(self, spec: SandboxPtySpec | None = None) -> None:
        super().__init__(spec)
        self.answer: Callable[[bytes, bytes], list[bytes]] = lambda start, end: [
            b"prompt$ echo of what was typed\r\n" + start + b"\r\nhel", b"lo\r\n" + end + b"0\r\nprompt$ ",
        ]  # fmt: skip

    async def write(self, data: bytes) -> None:
        await super().write(data)
        fields = data.decode().splitlines()[-2].split("'")
        token = (fields[3] + fields[5]).encode()
        assert token not in data
        for chunk in self.answer(token + b"S", token + b":"):
            self.out.put_nowait(chunk)


class DetachableShell(ScriptedShell):
    """Also runs commands without a connection."""

    def __init__(self, spec: SandboxPtySpec | None = None) -> None:
        super().__init__(spec)
        self.detached_runs: list[tuple[str, float]] = []
        self.detached_result: tuple[bytes, int | None] = (b"merged", 7)
        self.hang = False
        self.reattaches = 0

    async def run_detached(self, command: str, poll_interval_s: float = 15.0) -> tuple[bytes, int | None]:
        self.detached_runs.append((command, poll_interval_s))
        if self.hang:
            await asyncio.Event().wait()
        return self.detached_result

    async def reattach(self) -> None:
        self.reattaches += 1


class TerminalProvider(MemoryProvider):
    """Terminals made by ``make``, one per call."""

    name = "terminals"

    def __init__(self, make: Callable[[SandboxPtySpec], Any] = ScriptedShell) -> None:
        super().__init__()
        self.make = make
        self.sessions: list[Any] = []
        self.attaches: list[tuple[str, bool, int | None]] = []

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> Any:
        session = self.make(spec)
        if asyncio.iscoroutine(session):
            session = await session
        self.sessions.append(session)
        return session

    async def attach_pty(
        self, handle: SandboxHandle, session_id: str, *, takeover: bool = True, since: int | None = None
    ) -> Any:
        self.attaches.append((session_id, takeover, since))
        return ScriptedShell()


class RealShell(Session):
    """A process on a terminal of this machine, or on pipes."""

    def __init__(
        self, spec: SandboxPtySpec, process: subprocess.Popen[bytes], out: int, inp: int, err: int | None
    ) -> None:
        super().__init__(spec)
        self.process = process
        self.inp = inp
        self.readers = {out: self.out} | ({err: self.err} if err is not None else {})
        self.loop = asyncio.get_running_loop()
        for descriptor, queue in list(self.readers.items()):
            os.set_blocking(descriptor, False)
            self.loop.add_reader(descriptor, self._readable, descriptor, queue)

    def _readable(self, descriptor: int, queue: asyncio.Queue[bytes]) -> None:
        try:
            chunk = os.read(descriptor, 65536)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose last user is gone
            chunk = b""
        queue.put_nowait(chunk)
        if not chunk:
            self._forget(descriptor)
            if not self.readers and not self.exit.done():
                self.end(self.process.wait())

    def _forget(self, descriptor: int) -> None:
        if self.readers.pop(descriptor, None) is not None:
            self.loop.remove_reader(descriptor)
            if descriptor != self.inp:
                os.close(descriptor)

    async def write(self, data: bytes) -> None:
        await super().write(data)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.inp, view[:1024]) :]
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError as error:
                raise SandboxPtyError(f"the shell is gone: {error}") from error

    async def close(self) -> None:
        await super().close()
        for descriptor in list(self.readers):
            self._forget(descriptor)
        with contextlib.suppress(OSError):
            os.close(self.inp)
        self.process.kill()
        self.process.wait()


async def real_shell(argv: list[str], spec: SandboxPtySpec, environ: dict[str, str]) -> RealShell:
    """Start argv, with the spec's command as its -c where there is one."""
    argv = argv + (["-c", spec.command] if spec.command is not None else ["-i"] if spec.pty else [])
    if spec.pty:
        ours, theirs = pty_module.openpty()
        process = subprocess.Popen(  # noqa: ASYNC220 - a test's
            argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        return RealShell(spec, process, ours, ours, None)
    process = subprocess.Popen(  # noqa: ASYNC220 - a test's
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, start_new_session=True
    )
    assert process.stdin and process.stdout and process.stderr
    descriptors = [os.dup(pipe.fileno()) for pipe in (process.stdout, process.stdin, process.stderr)]
    for pipe in (process.stdout, process.stdin, process.stderr):
        pipe.close()
    return RealShell(spec, process, *descriptors)
