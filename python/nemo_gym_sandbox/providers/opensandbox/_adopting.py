"""Sessions over a websocket that the caller has made."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox._core import pty as native
from nemo_gym_sandbox.providers.base import SandboxPtyError
from nemo_gym_sandbox.providers.opensandbox._relay import SocketRelay

# pyright: reportPrivateUsage=false

if TYPE_CHECKING:
    from nemo_gym_sandbox._core.codec import Reply
    from nemo_gym_sandbox._core.loop import Bridge
    from nemo_gym_sandbox._core.objects import NativeObject
    from nemo_gym_sandbox.providers.opensandbox._relay import PtyWebSocket

__all__ = ["REQUEST_TIMEOUT_S", "AdoptingSession", "dialer"]

REQUEST_TIMEOUT_S = 300.0


@functools.cache
def dialer() -> NativeObject:
    """The provider that dials. It has no server: everything is in the address that it is given."""
    from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

    provider = OpenSandboxProvider(connection={"domain": "localhost", "api_key": ""}, attribution={"enabled": False})
    return provider._native


class AdoptingSession(native.NativePtySession):
    """A session that may begin with a caller's websocket. Until that is joined with the library everything waits for it."""

    _connected: asyncio.Future[None]
    _relay: SocketRelay | None = None
    _starting: asyncio.Task[None] | None = None  # until the websocket is joined
    _joined: bool = False

    def _adopt(
        self, client: Any, ws: PtyWebSocket, session_id: str, url: str, headers: dict[str, str], timeout_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        # What the base class has of a session, until there is one.
        self._id = session_id
        self._told = ""
        self._replayed: int | None = None
        self._closed = self._detached = False
        self._exit = loop.create_future()
        self._relay = SocketRelay(client, ws, url, headers, timeout_s, self)
        self._starting = loop.create_task(self._join(self._relay, timeout_s))

    async def _join(self, relay: SocketRelay, timeout_s: float) -> None:
        address = {"url": await relay.start(), "timeout_s": timeout_s}

        def make(bridge: Bridge, owner: NativeObject, reply: Reply) -> None:
            super(AdoptingSession, self).__init__(bridge, owner, reply)
            self._joined = True
            self._mode = self._told or self._mode

        try:
            await native.dial(dialer(), {**address, "headers": {}, "id": self._id, "takeover": False}, make)
        except Exception as error:
            self.refused(str(error))
            raise

    def greeted(self, mode: str | None) -> None:
        """The websocket is attached to the session."""
        self._told = self._mode = mode or "pty"
        if not self._connected.done():
            self._connected.set_result(None)

    def refused(self, reason: str) -> None:
        """The websocket ended before it was attached."""
        if not self._connected.done():
            text = f"PTY session {self._id}: the connection ended before it was established ({reason})"
            self._connected.set_exception(SandboxPtyError(text))
            self._connected.exception()  # whoever waits is told; nobody has to

    def replayed(self, offset: int) -> None:
        """Retained output begins at an offset."""
        self._replayed = offset

    async def _begun(self, timeout_s: float | None = None) -> float | None:
        """Wait until a caller's websocket is joined with the library; gives what is left of the time."""
        starting = self._starting
        if starting is None:
            return timeout_s
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.wait({starting}, timeout=timeout_s)
        if self._closed:
            raise SandboxPtyError(f"PTY session {self._id} is closed")
        if not starting.done():
            raise TimeoutError(f"PTY session {self._id} is not connected")
        starting.result()
        self._starting = None
        return None if timeout_s is None else max(0.0, timeout_s + began - loop.time())

    @property
    def mode(self) -> str | None:
        """``"pty"`` or ``"pipe"``; ``None`` until a caller's websocket has said so."""
        return self._mode if self._relay is None else self._told or None

    @property
    def replay_offset(self) -> int | None:
        """The byte offset at which the last replay began, ``None`` when nothing was replayed."""
        return self._replay_offset if self._relay is None else self._replayed

    async def read(self, timeout_s: float | None = None) -> bytes:
        if self._starting is not None:
            timeout_s = await self._begun(timeout_s)
        return await super().read(timeout_s)

    async def read_stderr(self, timeout_s: float | None = None) -> bytes:
        if self._starting is not None:
            timeout_s = await self._begun(timeout_s)
        return await super().read_stderr(timeout_s)

    async def write(self, data: bytes) -> None:
        if self._starting is not None:
            await self._begun()
        await super().write(data)

    async def resize(self, rows: int, cols: int) -> None:
        await self._begun()
        await super().resize(rows, cols)

    async def send_signal(self, signal: str) -> None:
        await self._begun()
        await super().send_signal(signal)

    async def wait_exit(self, timeout_s: float | None = None) -> int:
        return await super().wait_exit(await self._begun(timeout_s))

    async def detach(self) -> None:
        await self._begun()
        await super().detach()

    async def reattach(self) -> None:
        await self._begun()
        await super().reattach()
