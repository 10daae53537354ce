"""The blocking face: :class:`AsyncSandbox`, run on an event loop in a thread of its own."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self

from nemo_gym_sandbox._loop_thread import LoopThread
from nemo_gym_sandbox._sync_pty import SyncSandboxPty
from nemo_gym_sandbox.providers.base import SandboxStatus

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from nemo_gym_sandbox._sidecar import SandboxSidecar
    from nemo_gym_sandbox._streams import Stdin, TextCallback
    from nemo_gym_sandbox.api import AsyncSandbox
    from nemo_gym_sandbox.providers.base import SandboxEndpoint, SandboxExecResult, SandboxProvider, SandboxSpec

LOGGER = logging.getLogger(__name__)


class Sandbox:
    """One sandbox, for code without an event loop; every method waits.

    Same constructor, methods and results as :class:`AsyncSandbox`, which see. It may be used from several threads.
    Output callbacks are called in the loop's thread. RuntimeError where an event loop is running; TimeoutError for a
    call that takes longer than an hour.

    A sandbox that is forgotten while it runs is stopped, also by the interpreter's exit: but not after
    :meth:`serialize`, which hands it to somebody else, and one that was connected to is only let go of.
    """

    def __init__(
        self,
        provider: SandboxProvider | Mapping[str, Any],
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool = True,
    ) -> None:
        from nemo_gym_sandbox.api import AsyncSandbox

        async def make() -> AsyncSandbox:  # in the loop, which a provider's constructor may ask for
            return AsyncSandbox(provider, spec, owns_provider=owns_provider)

        thread = LoopThread()
        try:
            sandbox = thread.run(make)
        except BaseException:
            thread.close()
            raise
        self._adopt(thread, sandbox, _Ownership(sandbox, owns_provider=owns_provider))

    def _adopt(self, thread: LoopThread, sandbox: AsyncSandbox, owner: _Ownership) -> None:
        self._thread = thread
        self._sandbox = sandbox
        self._owner = owner
        self._final_status: SandboxStatus | None = None
        self._pty: SyncSandboxPty | None = None
        thread.on_abandoned(owner.leave)
        self._finalizer = weakref.finalize(self, thread.abandon)
        self._finalizer.atexit = False  # the thread sees to that, and waits

    # ---- what it is

    @property
    def provider(self) -> SandboxProvider:
        """The backend."""
        return self._sandbox.provider

    @property
    def provider_name(self) -> str:
        """The backend's name."""
        return self._sandbox.provider_name

    @property
    def spec(self) -> SandboxSpec | None:
        """What the sandbox was, or is to be, created from."""
        return self._sandbox.spec

    @property
    def sandbox_id(self) -> str | None:
        """The backend's id of the sandbox while there is one."""
        return self._sandbox.sandbox_id

    @property
    def pty(self) -> SyncSandboxPty:
        """Interactive sessions."""
        if self._pty is None:
            self._pty = SyncSandboxPty(self._thread, self._sandbox.pty)
        return self._pty

    # ---- start and stop

    def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and return once commands can run."""
        self._thread.run(self._sandbox.start, spec)
        return self

    def start_with_setup(self, spec: SandboxSpec | None, setup: Callable[[Self], object]) -> Self:
        """Start the sandbox, then call ``setup`` with it, in this thread; when that raises the sandbox is stopped."""
        self.start(spec)
        try:
            setup(self)
        except BaseException:
            try:
                self.stop()
            except Exception as error:
                LOGGER.warning("sandbox %s could not be stopped after its setup failed: %s", self.sandbox_id, error)
            raise
        return self

    def stop(self) -> None:
        """End the sandbox, then close the provider if it is owned. Can be repeated, also after a failure."""
        if self._final_status is not None:
            return
        self._thread.run(self._sandbox.stop)
        self._close(SandboxStatus.STOPPED)

    def _close(self, status: SandboxStatus) -> None:
        self._final_status = status
        self._finalizer.detach()
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.stop()

    # ---- commands

    def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = 180,
        user: str | int | None = None,
        preserve_background_services: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        stdin: Stdin | None = None,
    ) -> SandboxExecResult:
        """Run a shell command."""
        return self._thread.run(
            self._sandbox.exec,
            command,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            user=user,
            preserve_background_services=preserve_background_services,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            stdin=stdin,
        )

    def set_default_user(self, user: str | int | None) -> None:
        """Change whom later commands run as when they do not say."""

        async def change() -> None:
            self._sandbox.set_default_user(user)

        self._thread.run(change)

    def set_default_workdir(self, workdir: str | None) -> None:
        """Change where later commands run when they do not say."""

        async def change() -> None:
            self._sandbox.set_default_workdir(workdir)

        self._thread.run(change)

    # ---- files

    def upload(self, local: str | os.PathLike[str], remote: str | os.PathLike[str]) -> None:
        """Copy one local file into the sandbox."""
        self._thread.run(self._sandbox.upload, local, remote)

    def download(self, remote: str | os.PathLike[str], local: str | os.PathLike[str]) -> None:
        """Copy one file of the sandbox to the local file system."""
        self._thread.run(self._sandbox.download, remote, local)

    def upload_dir(
        self, local: str | os.PathLike[str], remote: str | os.PathLike[str], *, concurrency: int = 8
    ) -> None:
        """Copy what is in a local directory into one of the sandbox."""
        self._thread.run(self._sandbox.upload_dir, local, remote, concurrency=concurrency)

    def download_dir(
        self,
        remote: str | os.PathLike[str],
        local: str | os.PathLike[str],
        *,
        concurrency: int = 8,
        outside_links: Literal["refuse", "skip", "keep"] = "refuse",
    ) -> None:
        """Copy what is in a directory of the sandbox into a local one."""
        self._thread.run(
            self._sandbox.download_dir, remote, local, concurrency=concurrency, outside_links=outside_links
        )

    # ---- state

    def status(self) -> SandboxStatus:
        """Where the sandbox is in its life."""
        if self._final_status is not None:
            return self._final_status
        return self._thread.run(self._sandbox.status)

    def endpoint(self, port: int) -> SandboxEndpoint:
        """Resolve a port of ``spec.ports``."""
        return self._thread.run(self._sandbox.endpoint, port)

    def pause(self) -> None:
        """Pause the sandbox, keeping its state."""
        self._thread.run(self._sandbox.pause)

    def resume(self) -> None:
        """Resume the sandbox and return once it is ready."""
        self._thread.run(self._sandbox.resume)

    def sidecar(self, name: str) -> SyncSandboxSidecar:
        """A sidecar declared in ``SandboxSpec.sidecars``."""

        async def find() -> SandboxSidecar:
            return self._sandbox.sidecar(name)

        return SyncSandboxSidecar(self._thread, self._thread.run(find))

    # ---- other processes

    def serialize(self, *, scope: str | None = None) -> dict[str, Any]:
        """Describe the sandbox for :meth:`connect` in another process."""
        descriptor = self._thread.run(self._sandbox.serialize, scope=scope)
        self._owner.handed_over = True
        return descriptor

    @classmethod
    def connect(
        cls,
        descriptor: Mapping[str, Any] | object,
        *,
        provider: SandboxProvider | Mapping[str, Any],
        owns_provider: bool = True,
    ) -> Self:
        """Rebuild a sandbox in this process from what :meth:`serialize` gave."""
        from nemo_gym_sandbox.api import AsyncSandbox

        async def connect() -> AsyncSandbox:
            return await AsyncSandbox.connect(descriptor, provider=provider, owns_provider=owns_provider)

        thread = LoopThread()
        try:
            sandbox = thread.run(connect)
        except BaseException:
            thread.close()
            raise
        connected = cls.__new__(cls)
        connected._adopt(thread, sandbox, _Ownership(sandbox, owns_provider=owns_provider, borrowed=True))
        return connected

    def disconnect(self) -> None:
        """Let go of a sandbox rebuilt with :meth:`connect` without stopping it."""
        if self._final_status is not None and self._owner.borrowed:
            return
        self._thread.run(self._sandbox.disconnect)
        self._close(SandboxStatus.UNKNOWN)


class _Ownership:
    """What becomes of a sandbox that is forgotten. Does not refer to its :class:`Sandbox`, whose end it outlives."""

    def __init__(self, sandbox: AsyncSandbox, *, owns_provider: bool, borrowed: bool = False) -> None:
        self._sandbox = sandbox
        self._owns_provider = owns_provider
        self.borrowed = borrowed
        self.handed_over = False

    async def leave(self) -> None:
        if self.borrowed:
            await self._sandbox.disconnect()
        elif not self.handed_over:
            await self._sandbox.stop()
        elif self._owns_provider:
            await self._sandbox.provider.aclose()


class SyncSandboxSidecar:
    """A sidecar, for code without an event loop."""

    def __init__(self, thread: LoopThread, sidecar: SandboxSidecar) -> None:
        self._thread = thread
        self._sidecar = sidecar
        self.name: str = sidecar.name

    def exec(
        self, *argv: str, timeout_s: int | float | None = 180, on_stdout: Callable[[str], Any] | None = None
    ) -> SandboxExecResult:
        """Run argv without a shell and wait for its exit."""
        return self._thread.run(self._sidecar.exec, *argv, timeout_s=timeout_s, on_stdout=on_stdout)

    def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copy one file of the sidecar to the local file system."""
        self._thread.run(self._sidecar.download, remote, local)
