"""What the functions of a terminal session's module are given, and what they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nemo_gym_sandbox._core.codec import PTY_CLOSE, encode
from nemo_gym_sandbox.providers.base import SandboxPtyError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nemo_gym_sandbox._core.codec import Reply
    from nemo_gym_sandbox._core.loop import Bridge
    from nemo_gym_sandbox._core.objects import NativeObject

__all__ = ["PtyHttpClient", "PtySocket"]


class PtyHttpClient(Protocol):
    """What is asked of a client that is given here: that it can be closed."""

    def close(self) -> Coroutine[Any, Any, None]:
        """Release it."""
        ...


class PtySocket:
    """The library's end of a session's connection. Only the functions of this module, and the provider, make one."""

    __slots__ = ("__weakref__", "_bridge", "_owned", "_owner", "_reply", "_taken")

    @classmethod
    def _of(cls, bridge: Bridge, owner: NativeObject, reply: Reply, owned: bool) -> PtySocket:
        self = cls()
        self._bridge, self._owner, self._reply, self._owned = bridge, owner, reply, owned
        self._taken = False
        return self

    @property
    def session_id(self) -> str:
        """The session that it is attached to."""
        return str(self._reply.json()["id"])

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or belongs to a session, which closes it."""
        return self._taken

    async def close(self) -> None:
        """End a connection of which no session was made. Repeating is harmless."""
        if not self._taken:
            self._taken = True
            await self._bridge.call(PTY_CLOSE, encode({"terminal": self._reply.json()["terminal"]}))

    def __del__(self) -> None:
        if not getattr(self, "_taken", True):
            self._bridge.lib.release(self._reply.json()["terminal"])

    def _take(self) -> tuple[Bridge, NativeObject, Reply]:
        if self._taken:
            raise SandboxPtyError("the PTY connection is closed, or a session has it already")
        self._taken = True
        return self._bridge, self._owner, self._reply
