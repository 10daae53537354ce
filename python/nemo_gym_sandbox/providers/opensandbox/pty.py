"""Terminal sessions of the daemon in a sandbox, by its address.

The daemon's protocol is spoken by the library, on sockets of its own: each has a fresh connection, asks for signs of life
and answers them, and one that is lost is replaced from the last byte that arrived. A client that is given here is not
used; it is owned, and closed with the session, as callers expect of these functions.

Other than the daemon alone these sessions lose no last output to the exit of their process, never start a command a second
time, and obey interrupts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
from typing import TYPE_CHECKING, Any, Final, Protocol

from nemo_gym_sandbox._cleanup import finish
from nemo_gym_sandbox._core import pty as native
from nemo_gym_sandbox.providers.base import SandboxPtyError

# pyright: reportPrivateUsage=false
# A socket is opaque to callers, and made and used in this module alone.

if TYPE_CHECKING:
    from collections.abc import Awaitable

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


class PtyHttpClient(Protocol):
    """What is asked of a client that is given here: that it can be closed."""

    async def close(self) -> None:
        """Release it."""
        ...


class PtySocket:
    """The library's end of a session's connection. Only the functions of this module, and the provider, make one."""

    __slots__ = ("_bridge", "_owned", "_owner", "_reply")

    @classmethod
    def _of(cls, bridge: Bridge, owner: NativeObject, reply: Reply, owned: bool) -> PtySocket:
        self = cls()
        self._bridge, self._owner, self._reply, self._owned = bridge, owner, reply, owned
        return self


class OpenSandboxPtySession(native.NativePtySession):
    """One live session in a sandbox of OpenSandbox; :func:`open_pty_session` and :func:`attach_pty_session` make them.

    ``ws`` is a socket of this module. An ``owned`` session is ended by :meth:`close`, another one is let go of.
    """

    def __init__(
        self,
        client: PtyHttpClient | None,
        ws: PtySocket,
        session_id: str,
        session_url: str,
        headers: dict[str, str],
        request_timeout_s: float | None,
        owned: bool = True,
    ) -> None:
        if not isinstance(ws, PtySocket):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"ws must be a socket of this module, not {type(ws).__name__}; "
                "use open_pty_session() or attach_pty_session()"
            )
        if owned is not ws._owned:
            raise ValueError("a session that was opened here is owned, one that was attached to is not")
        super().__init__(ws._bridge, ws._owner, ws._reply)
        if session_id != self.session_id:
            raise ValueError(f"the socket is one of PTY session {self.session_id}, not of {session_id}")
        self._client = client
        self._session_url = session_url
        self._headers = headers
        self._request_timeout_s = request_timeout_s
        self._owned = owned

    async def close(self) -> None:
        """Release the session, and the client: one that was opened here is ended, an attached one lives on.

        Repeating is harmless, and so is a daemon that can't be reached any more. Reads that wait raise SandboxPtyError.
        """
        try:
            await super().close()
        except SandboxPtyError as error:
            LOGGER.warning("PTY session %s could not be ended and may still run: %s", self.session_id, error)
        finally:
            client, self._client = self._client, None
            if client is not None:
                await _close_client(client)


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
        request: dict[str, Any] = {
            "command": _effective_command(spec) or "",
            "cwd": spec.cwd or "",
            "rows": spec.rows,
            "cols": spec.cols,
            "pipes": not spec.pty,
        }
        return await _dial(client, base_url, headers, request_timeout_s, request, owned=True)
    except BaseException:
        await _close_client(client)
        raise


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
    try:
        if not session_id:
            raise ValueError("session_id must not be empty")
        request: dict[str, Any] = {"id": session_id, "takeover": takeover, "since": since or 0}
        return await _dial(client, base_url, headers, request_timeout_s, request, owned=False)
    except BaseException:
        await _close_client(client)
        raise


async def _dial(
    client: PtyHttpClient,
    base_url: str,
    headers: dict[str, str],
    request_timeout_s: float | None,
    request: dict[str, Any],
    *,
    owned: bool,
) -> OpenSandboxPtySession:
    base = base_url.rstrip("/")
    address = {"url": base, "headers": dict(headers), "timeout_s": request_timeout_s or 0}

    def make(bridge: Bridge, owner: NativeObject, reply: Reply) -> OpenSandboxPtySession:
        ws = PtySocket._of(bridge, owner, reply, owned)
        number: str = reply.json()["id"]
        return OpenSandboxPtySession(
            client, ws, number, f"{base}/pty/{number}", dict(headers), request_timeout_s, owned
        )

    return await native.dial(_dialer(), {**address, **request}, make)


@functools.cache
def _dialer() -> NativeObject:
    """The provider that dials. It has no server: everything is in the address that it is given."""
    from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

    provider = OpenSandboxProvider(connection={"domain": "localhost", "api_key": ""}, attribution={"enabled": False})
    return provider._native


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
    """Close a client, also when the caller is being cancelled. Its failure is nobody's concern."""
    closing: Awaitable[None] = client.close()
    try:
        await finish(closing, _CLIENT_CLOSE_TIMEOUT_S)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        LOGGER.warning("the HTTP client of a PTY session could not be closed: %s", error)
