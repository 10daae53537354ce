"""Sandboxes on this machine: a directory each, under bubblewrap where that works."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nemo_gym_sandbox._core.native import NativeProvider
from nemo_gym_sandbox.providers import _options as check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nemo_gym_sandbox._core.pty import NativePtySession
    from nemo_gym_sandbox.providers.base import SandboxEndpoint, SandboxExecResult, SandboxHandle, SandboxPtySpec

__all__ = ["LocalProvider"]


class LocalProvider(NativeProvider):
    """Runs commands on this machine.

    ``workspace_root`` holds the directories of sandboxes whose spec names none; the system's temporary directory
    otherwise. ``concurrency`` bounds the commands at once, None is no limit. ``isolation`` is ``auto`` (bubblewrap
    where it works), ``bwrap`` or ``none``, and comes from ``NEMO_GYM_SANDBOX_LOCAL_ISOLATION`` when not given;
    ``network="none"`` needs isolation. ``inherit_env`` names variables of this process that commands see too.
    ``max_output_bytes`` of each channel are kept, head and tail, 0 being all. ``kill_grace_s`` is between the request
    to end and the kill. A sandbox outlives its last client by ``orphan_timeout_s``, or ``handover_timeout_s`` once it
    was serialized; 0 is for ever.

    Raises TypeError for an argument that does not exist, ValueError for a value that makes no sense.
    """

    name: ClassVar[str] = "local"
    writes_spec_files: ClassVar[bool] = True
    keeps_file_modes: ClassVar[bool] = True

    @check.named_keywords
    def __init__(
        self,
        workspace_root: str | os.PathLike[str] | None = None,
        shell: str = "/bin/bash",
        default_timeout_s: int | float = 180,
        concurrency: int | None = None,
        *,
        isolation: Literal["auto", "bwrap", "none"] | None = None,
        network: Literal["shared", "none"] = "shared",
        inherit_env: Sequence[str] = (),
        max_output_bytes: int = 268435456,
        kill_grace_s: float = 0.5,
        orphan_timeout_s: float = 60,
        handover_timeout_s: float = 3600,
    ) -> None:
        check.text("shell", shell)
        check.number("default_timeout_s", default_timeout_s, above=0)
        check.optional_number("concurrency", concurrency, at_least=1, whole=True)
        if isolation is not None:
            check.one_of("isolation", isolation, ("auto", "bwrap", "none"))
        check.one_of("network", network, ("shared", "none"))
        check.texts("inherit_env", inherit_env)
        check.number("max_output_bytes", max_output_bytes, at_least=0, whole=True)
        check.number("kill_grace_s", kill_grace_s, at_least=0)
        check.number("orphan_timeout_s", orphan_timeout_s, at_least=0)
        check.number("handover_timeout_s", handover_timeout_s, at_least=0)
        config: dict[str, Any] = {
            "shell": shell,
            "default_timeout_s": default_timeout_s,
            "network": network,
            "inherit_env": list(inherit_env),
            "max_output_bytes": max_output_bytes,
            "kill_grace_s": kill_grace_s,
            "orphan_timeout_s": orphan_timeout_s,
            "handover_timeout_s": handover_timeout_s,
        }
        if workspace_root is not None:
            config["workspace_root"] = os.path.abspath(workspace_root)
        if concurrency is not None:
            config["concurrency"] = concurrency
        if isolation is not None:
            config["isolation"] = isolation
        super().__init__(config)

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        """Describe a sandbox for :meth:`connect` in another process of this machine."""
        return await self._serialize_handle(handle, scope)

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """Take up a running sandbox of this machine."""
        return await self._connect(descriptor)

    async def disconnect_handle(self, handle: SandboxHandle) -> None:
        """Let go of a sandbox that was taken up; it lives on."""
        await self._disconnect(handle)

    async def set_defaults(self, handle: SandboxHandle, *, user: str | int | None, workdir: str | None) -> None:
        """Note whom uploads are to belong to."""
        await self._set_defaults(handle, user=user, workdir=workdir)

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """The address of a declared port."""
        return await self._endpoint(handle, port)

    async def pause(self, handle: SandboxHandle) -> None:
        """Stop the sandbox's processes in place."""
        await self._pause(handle)

    async def resume(self, handle: SandboxHandle) -> None:
        """Let stopped processes go on."""
        await self._resume(handle)

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> NativePtySession:
        """Open a session inside the sandbox.

        Raises ValueError for a size or a user that cannot be, SandboxPtyError
        when the session can't be opened.
        """
        return await self._create_pty(handle, spec)

    async def attach_pty(
        self, handle: SandboxHandle, session_id: str, *, takeover: bool = True, since: int | None = None
    ) -> NativePtySession:
        """Attach to a session by its id, from any process that is connected to the sandbox.

        ``takeover`` evicts the holder; without it a held session refuses with SandboxPtyError. ``since`` is the byte
        offset from which retained output is read first; 0, and ``None``, is all of it.
        """
        return await self._attach_pty(handle, session_id, takeover, since)

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
        return await self._exec_with_background_services(handle, command, cwd, timeout_s, env, user)
