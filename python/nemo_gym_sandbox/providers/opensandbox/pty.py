"""Terminal sessions of the daemon in a sandbox, by its address.

The daemon's protocol is spoken by the library, on sockets of its own: each has a fresh connection, asks for signs of life
and answers them, and one that is lost is replaced from the last byte that arrived. A client that is given here is owned,
and closed with the session, as callers expect of these functions; it is used for a websocket of the caller's own alone.

Other than the daemon alone these sessions lose no last output to the exit of their process, never start a command a second
time, and obey interrupts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from typing import TYPE_CHECKING, Any, Final

from nemo_gym_sandbox._cleanup import finish
from nemo_gym_sandbox._core import pty as native
from nemo_gym_sandbox.providers.base import SandboxPtyError
from nemo_gym_sandbox.providers.opensandbox._adopting import REQUEST_TIMEOUT_S, AdoptingSession, dialer
from nemo_gym_sandbox.providers.opensandbox._relay import PtyWebSocket, SocketRelay, request
from nemo_gym_sandbox.providers.opensandbox._socket import PtyHttpClient, PtySocket

# pyright: reportPrivateUsage=false
# A socket is opaque to callers, and made and used in this module alone.

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nemo_gym_sandbox._core.codec import Reply
    from nemo_gym_sandbox._core.loop import Bridge
    from nemo_gym_sandbox._core.objects import NativeObject
    from nemo_gym_sandbox.providers.base import SandboxPtySpec

__all__ = [
    "CHAN_REPLAY",
    "CHAN_STDERR",
    "CHAN_STDIN",
    "CHAN_STDOUT",
    "LOGGER",
    "REPLAY_HEADER_BYTES",
    "SUPPORTED_SIGNALS",
    "WS_CLOSE_POLICY_VIOLATION",
    "WS_CLOSE_TAKEN_OVER",
    "OpenSandboxPtySession",
    "PtyHttpClient",
    "PtySocket",
    "PtyWebSocket",
    "attach_pty_session",
    "open_pty_session",
]

LOGGER = logging.getLogger(__name__)

CHAN_STDIN: Final = 0
"""The first byte of a binary frame with input."""
CHAN_STDOUT: Final = 1
"""With stdout, or all output of a terminal."""
CHAN_STDERR: Final = 2
"""With stderr, which only pipes have."""
CHAN_REPLAY: Final = 3
"""With retained output; eight bytes of its offset follow, the most significant first."""
REPLAY_HEADER_BYTES: Final = 9
"""What precedes the bytes of a replay: the channel and the offset."""
SUPPORTED_SIGNALS: Final = frozenset({"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"})
"""What the daemon delivers."""
WS_CLOSE_POLICY_VIOLATION: Final = 1008
"""The close code of a refused socket."""
WS_CLOSE_TAKEN_OVER: Final = 4001
"""The close code of a socket whose session somebody else has taken over."""

_DEFAULT_SHELL_SNIPPET: Final = 'exec "$(command -v bash || echo sh)"'
_PTY_RETRY_DELAYS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # as the library waits
_CLIENT_CLOSE_TIMEOUT_S: Final = 30.0


class OpenSandboxPtySession(AdoptingSession):
    """One live session in a sandbox of OpenSandbox; :func:`open_pty_session` and :func:`attach_pty_session` make them.

    ``ws`` is a socket of this module, or a websocket of the caller's own that is attached to the session: one of aiohttp, or
    what has its ``send_bytes``, ``send_str``, ``close``, ``close_code`` and iteration. When that is lost, ``client`` makes the
    next one, from ``session_url`` and with ``headers``. An ``owned`` session is ended by :meth:`close`, another one is let
    go of. Raises TypeError for what is no websocket, SandboxPtyError for a socket of this module that is in use.
    """

    def __init__(
        self,
        client: PtyHttpClient | None,
        ws: PtySocket | PtyWebSocket,
        session_id: str,
        session_url: str,
        headers: dict[str, str],
        request_timeout_s: float | None,
        owned: bool = True,
    ) -> None:
        self._client = client
        self._session_url = session_url
        self._headers = headers
        self._request_timeout_s = request_timeout_s
        self._owned = owned
        self._connected = asyncio.get_running_loop().create_future()
        self._ends_by_client = owned
        self._closing_here = False
        if isinstance(ws, PtySocket):
            if session_id != ws.session_id:
                raise ValueError(f"the socket is one of PTY session {ws.session_id}, not of {session_id}")
            if ws._owned and not owned:
                raise ValueError("a session that was opened here is owned")
            self._ends_by_client = owned and not ws._owned
            super().__init__(*ws._take())
            self._connected.set_result(None)
            return
        given: object = ws
        if not all(hasattr(type(given), name) for name in ("__aiter__", "send_bytes", "send_str", "close")):
            raise TypeError(
                f"ws must be a websocket, not {type(given).__name__}; use open_pty_session() or attach_pty_session()"
            )
        self._adopt(client, ws, session_id, session_url, headers, request_timeout_s or REQUEST_TIMEOUT_S)

    async def close(self) -> None:
        """Release the session, and the client: one that was opened here is ended, an attached one lives on.

        Repeating is harmless, and so is a daemon that can't be reached any more. Reads that wait raise SandboxPtyError.
        """
        client, self._client = self._client, None
        first, self._closing_here = not self._closing_here, True
        try:
            if self._starting is not None:
                self._closed = True
                await finish(
                    asyncio.wait({self._starting}), _CLIENT_CLOSE_TIMEOUT_S
                )  # which takes a moment: it is local
            if self._relay is None or self._joined:
                await super().close()
        except (SandboxPtyError, TimeoutError) as error:
            LOGGER.warning("PTY session %s could not be ended and may still run: %s", self.session_id, error)
        finally:
            self.refused("it was closed")
            if first and (self._relay is not None or client is not None):
                await _quietly(self._let_go(self._relay, client), "what a PTY session used could not be closed")

    async def _let_go(self, relay: SocketRelay | None, client: PtyHttpClient | None) -> None:
        try:
            if relay is not None:
                await relay.stop()
            if self._ends_by_client and client is not None:
                await _quietly(self._end_by(client), f"PTY session {self._id} could not be ended and may still run")
        finally:
            if client is not None:
                await client.close()

    async def _end_by(self, client: PtyHttpClient) -> None:
        await request(client, "delete", self._session_url, self._headers)

    # ---------------------------------------------------------------- parts that subclasses and tests reach for

    @property
    def _output(self) -> native._Output:
        return self._outputs[0]

    @property
    def _stderr(self) -> native._Output:
        return self._outputs[1]

    @property
    def _error(self) -> SandboxPtyError | None:
        """Why the session ended without an exit."""
        return self._close_error() if self._exit.done() and self._exit.result().status != 0 else None

    async def _read_stream(self, queue: native._Output, timeout_s: float | None) -> bytes:
        """The next chunk of ``_output`` or ``_stderr``."""
        return await self._read(queue, timeout_s)

    async def _wait_connected(self, timeout_s: float | None) -> None:
        """Wait until the session is attached. TimeoutError when it is not in time, SandboxPtyError when it can't be."""
        limit = timeout_s or REQUEST_TIMEOUT_S
        await asyncio.wait({self._connected}, timeout=limit)
        if not self._connected.done():
            raise TimeoutError(f"PTY session {self._id} was not attached within {limit:g} s")
        self._connected.result()

    async def _send(self, frame: bytes | str) -> None:
        """Send a frame as the daemon knows them: input after its channel, or a control message."""
        if isinstance(frame, bytes):
            if frame[:1] != bytes([CHAN_STDIN]):
                raise ValueError("a binary frame to the daemon begins with the channel of the input")
            await self.write(frame[1:])
            return
        control: dict[str, Any] = json.loads(frame)
        match control.get("type"):
            case "stdin":
                await self.write(str(control["data"]).encode())
            case "resize":
                await self.resize(control["rows"], control["cols"])
            case "signal":
                await self.send_signal(control["signal"])
            case "ping":
                pass  # the library asks for signs of life itself
            case other:
                raise ValueError(f"there is no control message of type {other!r}")

    async def _pump(self) -> None:
        """Wait for the session's end. The library moves its bytes."""
        await self._begun()
        await asyncio.wait([self._exit])

    async def _pump_socket(self) -> None:
        """Wait for the end of its connections, which replace each other."""
        await self._pump()

    async def _reattach_socket(self) -> bool:
        """Give the connection up for another one that goes on at the last byte. False when that can't be."""
        try:
            await self.detach()
            await self.reattach()
        except SandboxPtyError:
            return False
        return True

    def _close_error(self) -> SandboxPtyError:
        """What whoever uses the session is told now that it has ended."""
        try:
            self._check_input()
        except SandboxPtyError as error:
            return error
        return SandboxPtyError(f"PTY session {self._id} has lost its connection")


async def open_pty_session(
    client: PtyHttpClient,
    base_url: str,
    headers: dict[str, str],
    spec: SandboxPtySpec,
    request_timeout_s: float | None,
) -> OpenSandboxPtySession:
    """Open a session of the daemon at ``base_url``, with ``headers`` in every request.

    ``request_timeout_s`` bounds each request; ``None`` is 300 s. Owns ``client``: it is closed on failure and by the
    session's ``close()``. Raises ValueError for a user who is not given by name, SandboxPtyError when the session can't
    be opened, TimeoutError when the daemon does not say in time that it is; then nothing of it is left.
    """
    try:
        asked: dict[str, Any] = {
            "command": _effective_command(spec) or "",
            "cwd": spec.cwd or "",
            "rows": spec.rows,
            "cols": spec.cols,
            "pipes": not spec.pty,
        }
        ws = await _dial(base_url, headers, request_timeout_s, asked, owned=True)
    except BaseException:
        await _close_client(client)
        raise
    return await _start_session(client, ws, base_url, ws.session_id, headers, request_timeout_s)


async def attach_pty_session(
    client: PtyHttpClient,
    base_url: str,
    headers: dict[str, str],
    session_id: str,
    takeover: bool = True,
    since: int | None = None,
    *,
    request_timeout_s: float | None,
) -> OpenSandboxPtySession:
    """Attach to a session of the daemon at ``base_url``. Owns ``client`` as :func:`open_pty_session` does.

    ``takeover`` evicts its holder; without it a held session refuses. ``since`` is the byte offset from which retained
    output is read first; ``None`` is all of it. Raises SandboxPtyError when that can't be, also for a session that has
    ended: the daemon would run its command again.
    """
    query: dict[str, str] = {"takeover": "1"} if takeover else {}
    if since is not None:
        query["since"] = str(since)
    try:
        ws = await _connect_ws(client, base_url, headers, session_id, query, request_timeout_s)
    except BaseException:
        await _close_client(client)
        raise
    return await _start_session(client, ws, base_url, session_id, headers, request_timeout_s, owned=False)


async def _connect_ws(
    client: PtyHttpClient,
    base_url: str,
    headers: dict[str, str],
    session_id: str,
    query: dict[str, str],
    request_timeout_s: float | None,
) -> PtySocket:
    """Attach to a session. ``query`` is that of the daemon's websocket: ``takeover``, ``since`` and ``pty``."""
    if not session_id:
        raise ValueError("session_id must not be empty")
    unknown = query.keys() - {"takeover", "since", "pty"}
    if unknown:
        raise ValueError(f"the daemon's websocket knows no {', '.join(sorted(unknown))}")
    asked: dict[str, Any] = {
        "id": session_id,
        "takeover": query.get("takeover") == "1",
        "since": int(query.get("since", 0)),
        "pipes": query.get("pty") == "0",
    }
    return await _dial(base_url, headers, request_timeout_s, asked, owned=False)


async def _start_session(
    client: PtyHttpClient,
    ws: PtySocket | PtyWebSocket,
    base_url: str,
    session_id: str,
    headers: dict[str, str],
    request_timeout_s: float | None,
    owned: bool = True,
) -> OpenSandboxPtySession:
    """Make a session of a connection, and wait until it is attached. On failure all of it is released, and the client."""
    try:
        url = f"{base_url.rstrip('/')}/pty/{session_id}"
        session = OpenSandboxPtySession(client, ws, session_id, url, headers, request_timeout_s, owned)
    except BaseException:
        await _close_client(client)
        raise
    try:
        await session._wait_connected(request_timeout_s)
    except BaseException:
        await session.close()
        raise
    return session


async def _dial(
    base_url: str, headers: dict[str, str], request_timeout_s: float | None, asked: dict[str, Any], *, owned: bool
) -> PtySocket:
    address = {"url": base_url.rstrip("/"), "headers": dict(headers), "timeout_s": request_timeout_s or 0}

    def make(bridge: Bridge, owner: NativeObject, reply: Reply) -> PtySocket:
        return PtySocket._of(bridge, owner, reply, owned)

    return await native.dial(dialer(), {**address, **asked}, make)


def of_sandbox(owned: bool) -> native.Make[OpenSandboxPtySession]:
    """How the provider makes sessions of its sandboxes: they have no client."""

    def make(bridge: Bridge, owner: NativeObject, reply: Reply) -> OpenSandboxPtySession:
        ws = PtySocket._of(bridge, owner, reply, owned)
        return OpenSandboxPtySession(None, ws, reply.json()["id"], "", {}, None, owned)

    return make


def _effective_command(spec: SandboxPtySpec) -> str | None:
    """The command with the spec's variables and user in it: the daemon knows neither. ``None`` is the daemon's shell."""
    user: object = spec.user
    if user is not None and (isinstance(user, bool) or not isinstance(user, str)):
        raise ValueError(f"PTY sessions of OpenSandbox need a user name, not {user!r}")
    command = spec.command
    if spec.env:
        words = ["env", *(f"{name}={shlex.quote(value)}" for name, value in spec.env.items())]
        command = " ".join([*words, "sh -c", shlex.quote(command or _DEFAULT_SHELL_SNIPPET)])
    if user and user != "root":
        run = f"-c {shlex.quote(command)} " if command else ""
        command = f"su -s /bin/sh {run}{shlex.quote(user)}"
    return command or None


async def _close_client(client: PtyHttpClient) -> None:
    await _quietly(client.close(), "the HTTP client of a PTY session could not be closed")


async def _quietly(work: Coroutine[Any, Any, object], what: str) -> None:
    """Clean up, also when the caller is being cancelled. A failure is nobody's concern."""
    try:
        await finish(work, _CLIENT_CLOSE_TIMEOUT_S)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        LOGGER.warning("%s: %s", what, error)
