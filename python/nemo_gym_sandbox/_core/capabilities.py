"""What only some backends support: one class per capability, which a provider's class has among its bases.

A provider announces a capability by having its methods, so none of them can live in the common base.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._streams import TextFeed
from ..providers.base import SandboxEndpoint
from . import codec, pty
from .loop import running_bridge
from .native import NativeProvider, absolute, traced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from ..providers.base import SandboxExecResult, SandboxHandle, SandboxPtySpec
    from .codec import Reply
    from .pty import NativePtySession

__all__ = [
    "NativeDefaults",
    "NativeEndpoints",
    "NativePausing",
    "NativeReconnection",
    "NativeServices",
    "NativeSidecars",
    "NativeTerminals",
]


class NativeReconnection(NativeProvider):
    """Sandboxes can be taken up by other processes."""

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        """Describe a sandbox for :meth:`connect` in another process."""
        return (await self._on(handle, codec.SERIALIZE, scope=scope)).json()

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """Take up a sandbox that lives; the provider's create error when it is not there."""
        request = traced({"provider": self._native.number, "descriptor": dict(descriptor)})
        bridge = running_bridge()

        def undo(reply: Reply) -> None:
            bridge.lib.release(reply.json()["sandbox"])

        return self._handle(bridge, await self._call(codec.CONNECT, request, bridge=bridge, undo=undo))

    async def disconnect_handle(self, handle: SandboxHandle) -> None:
        """Let go of a sandbox that was taken up; it lives on."""
        await self._on(handle, codec.DISCONNECT)


class NativeDefaults(NativeProvider):
    """The user and the directory of commands that name none can be changed while a sandbox runs."""

    async def set_defaults(self, handle: SandboxHandle, *, user: str | int | None, workdir: str | None) -> None:
        """Note whom uploads are to belong to and where relative paths begin; ``None`` is the sandbox's own."""
        await self._on(handle, codec.SET_DEFAULTS, user=codec.encode_user(user), workdir=workdir or "")


class NativeEndpoints(NativeProvider):
    """Ports of a sandbox can be reached."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Where a port is reached, and with which headers."""
        found = (await self._on(handle, codec.ENDPOINT, port=port)).json()
        return SandboxEndpoint(found["url"], found["headers"] or {})


class NativePausing(NativeProvider):
    """Sandboxes can be made to stand still."""

    async def pause(self, handle: SandboxHandle) -> None:
        """Make a sandbox stand still; it does when this returns."""
        await self._on(handle, codec.PAUSE)

    async def resume(self, handle: SandboxHandle) -> None:
        """Let a paused sandbox go on."""
        await self._on(handle, codec.RESUME)


class NativeTerminals(NativeProvider):
    """Sandboxes have terminal sessions."""

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> NativePtySession:
        """Open a session inside a sandbox.

        Raises ValueError for a size or a user that cannot be, NotImplementedError where the configuration leaves no way
        to have one, SandboxPtyError when the session can't be opened.
        """
        return await pty.create(self._raw(handle), spec, pty.NativePtySession)

    async def attach_pty(
        self, handle: SandboxHandle, session_id: str, *, takeover: bool = True, since: int | None = None
    ) -> NativePtySession:
        """Attach to a session by its id, from any process that is connected to the sandbox.

        ``takeover`` evicts the holder; without it a held session refuses with SandboxPtyError. ``since`` is the byte
        offset from which retained output is read first; 0, and ``None``, is all of it.
        """
        return await pty.attach(self._raw(handle), session_id, takeover, since, pty.NativePtySession)


class NativeServices(NativeProvider):
    """Commands can leave services behind."""

    async def exec_with_background_services(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        timeout_s: int | float | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command and leave what it started running, whatever becomes of the command."""
        return await self._run(handle, command, cwd, env, timeout_s, user, keep_background=True)


class NativeSidecars(NativeProvider):
    """Sandboxes can have further containers beside them."""

    async def sidecar_exec(
        self,
        handle: SandboxHandle,
        sidecar: str,
        argv: list[str],
        *,
        timeout_s: int | float | None,
        on_stdout: Callable[[str], Awaitable[None] | None] | None = None,
    ) -> SandboxExecResult:
        """Run argv in a sidecar, without a shell, and wait for its exit.

        What ``on_stdout`` received is in the result as well.
        """
        request: dict[str, Any] = {"sandbox": self._raw(handle).number, "sidecar": sidecar, "argv": argv}
        if timeout_s is not None:
            request["timeout_s"] = codec.encode_timeout(timeout_s)
        bridge = running_bridge()
        if on_stdout is None:
            return await self._run_collecting(bridge, request)
        heard: list[str] = []
        follow = on_stdout

        def hear(text: str) -> Awaitable[object] | object:
            heard.append(text)
            return follow(text)

        feed = TextFeed(hear)
        result = await self._run_streaming(bridge, {**request, "stdout": "stream"}, feed, None, None)
        await feed.finish()
        return replace(result, stdout="".join(heard))

    async def download_sidecar_file(
        self, handle: SandboxHandle, sidecar: str, source_path: str, target_path: Path
    ) -> None:
        """Copy one file of a sidecar to the local file system."""
        await self._on(handle, codec.DOWNLOAD, sidecar=sidecar, remote=source_path, local=absolute(target_path))
