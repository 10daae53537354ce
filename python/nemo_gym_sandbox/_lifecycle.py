"""The life of one sandbox over a provider: what may be called when, and stopping that can be repeated."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nemo_gym_sandbox import telemetry
from nemo_gym_sandbox._cleanup import LoopLock, finish
from nemo_gym_sandbox.providers.base import SandboxStatus, SupportsSandboxDisconnect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nemo_gym_sandbox._recorder import Recorder
    from nemo_gym_sandbox.providers.base import SandboxHandle, SandboxProvider, SandboxSpec

LOGGER = logging.getLogger(__name__)

CLEANUP_TIMEOUT_S = 120.0
"""How long clean-up after a failure may take before the failure is reported all the same."""


class State(enum.Enum):
    """Moves forward only, except that a start that made nothing returns to NEW."""

    NEW = enum.auto()
    STARTING = enum.auto()
    STARTED = enum.auto()
    STOPPED = enum.auto()
    DISCONNECTED = enum.auto()


_REFUSALS = {
    State.NEW: "Sandbox has not been started; await start() first",
    State.STARTING: "Sandbox has not been started yet; its start() is still running",
    State.STOPPED: "Sandbox has been stopped and has not been started again, which it cannot be: make a new one",
    State.DISCONNECTED: "Sandbox has been disconnected and has not been started here: connect() to it again",
}


class Lifecycle:
    """Owns the handle of one sandbox, and the provider when asked to."""

    def __init__(
        self,
        provider: SandboxProvider,
        on_created: Callable[[SandboxHandle], Awaitable[None]],
        has_defaults: Callable[[], bool],
        *,
        owns_provider: bool,
    ) -> None:
        self._on_created = on_created  # awaited before anything is uploaded
        self._has_defaults = has_defaults
        self.provider = provider
        self.provider_name: str = str(getattr(provider, "name", type(provider).__name__))
        self.owns_provider = owns_provider
        self.state: State = State.NEW
        self.connected: bool = False
        self._handle: SandboxHandle | None = None
        self._provider_closed = False
        self._counted_by: Recorder | None = None
        self._starting: asyncio.Future[None] | None = None
        self._stop_asked = False
        self._lock = LoopLock()  # held while the sandbox or the provider is being closed

    @property
    def sandbox_id(self) -> str | None:
        return None if self._handle is None else self._handle.sandbox_id

    def handle(self) -> SandboxHandle:
        """The handle of the running sandbox; RuntimeError when there is none."""
        if self.state is not State.STARTED or self._handle is None:
            raise RuntimeError(_REFUSALS[self.state])
        return self._handle

    def adopt(self, handle: SandboxHandle) -> None:
        """Take over a sandbox that somebody else created and stays responsible for."""
        self._handle, self.state, self.connected = handle, State.STARTED, True

    def check_startable(self) -> None:
        if self.state is State.STOPPED:
            raise RuntimeError("Sandbox has been stopped; make a new one")
        if self.state is State.DISCONNECTED:
            raise RuntimeError("Sandbox has been disconnected; connect() to it again")
        if self.state is not State.NEW:
            raise RuntimeError("Sandbox is already started")

    async def start(self, spec: SandboxSpec) -> None:
        """Create the sandbox and write its files. What fails, or is cancelled, leaves nothing behind."""
        self.check_startable()
        self.state = State.STARTING
        cancellations = _cancellations()
        self._starting = asyncio.ensure_future(self._start(spec))
        try:
            await self._starting
            if _cancellations() > cancellations:  # the provider swallowed it
                raise asyncio.CancelledError
        except asyncio.CancelledError:
            if self._starting.done() and not self._starting.cancelled():
                self._starting.exception()  # seen: the cancellation goes before it
            if self._handle is not None:
                await self.undo()  # it became ready all the same
            if self._stop_asked and _cancellations() == cancellations:
                raise self._stopped_while_starting() from None
            raise
        finally:
            self._starting = None
        if self._stop_asked:
            raise self._stopped_while_starting()

    @staticmethod
    def _stopped_while_starting() -> RuntimeError:
        return RuntimeError("Sandbox was stopped while it was starting")

    async def _start(self, spec: SandboxSpec) -> None:
        # The provider writes the files itself where it can, unless they depend on defaults that it will hear of later.
        writes_files = getattr(type(self.provider), "writes_spec_files", False) is True
        here = {} if writes_files and not self._has_defaults() else spec.files
        wanted = dataclasses.replace(spec, files={}) if writes_files and here else spec
        recorder = telemetry.recorder()
        try:
            if recorder is None:
                self._handle = await self.provider.create(wanted)
                await self._prepare(self._handle, here)
            else:
                with recorder.span("start", self.provider_name, None) as span:
                    self._handle = await self.provider.create(wanted)
                    span.sandbox_id(self._handle.sandbox_id)
                    recorder.active(self.provider_name, +1)
                    self._counted_by = recorder
                    await self._prepare(self._handle, here)
        except BaseException:
            if self._handle is None:
                self.state = State.NEW
            else:
                self.state = State.STARTED
                await self.undo()
            raise
        self.state = State.STARTED

    async def _prepare(self, handle: SandboxHandle, files: dict[str, str]) -> None:
        await self._on_created(handle)
        if not files:
            return
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="nemo-gym-sandbox-") as folder:
            for index, (target, text) in enumerate(files.items()):
                source = Path(folder) / str(index)
                source.write_bytes(text.encode("utf-8"))
                await self.provider.upload_file(handle, source, target)
                source.unlink()

    async def undo(self) -> None:
        """Stop after a failure, whose error counts: what goes wrong here is logged, and stop() may be tried again."""
        try:
            await finish(self._end(), CLEANUP_TIMEOUT_S)
        except Exception as error:
            LOGGER.warning(
                "sandbox %s of provider %s could not be stopped after its start failed; call stop() again: %s",
                self.sandbox_id,
                self.provider_name,
                error,
            )

    async def stop(self) -> None:
        """End the sandbox, then the provider if it is owned. Whatever failed is done again by the next call."""
        starting = self._starting
        if starting is not None and not starting.done():
            self._stop_asked = True
            starting.cancel()
            await asyncio.wait({starting})
        await self._end()

    async def _end(self) -> None:
        async with self._lock.here():
            if self.state is State.DISCONNECTED:
                return
            if self.state is State.STARTED:
                await self._close()
            self.state = State.STOPPED
            await self._close_provider()

    async def _close(self) -> None:
        handle = self.handle()
        recorder = telemetry.recorder()
        if recorder is None:
            await self.provider.close(handle)
        else:
            with recorder.span("stop", self.provider_name, handle.sandbox_id):
                await self.provider.close(handle)
        self.state = State.STOPPED
        self._handle = None
        if self._counted_by is not None:
            self._counted_by.active(self.provider_name, -1)
            self._counted_by = None

    async def _close_provider(self) -> None:
        if self.owns_provider and not self._provider_closed:
            await self.provider.aclose()
            self._provider_closed = True

    async def disconnect(self) -> None:
        """Let go of a sandbox that was connected to; it lives on."""
        if not self.connected:
            raise RuntimeError("disconnect() is valid only for a sandbox rebuilt with connect(); use stop()")
        async with self._lock.here():
            if self.state is State.STARTED:
                provider = self.provider
                if issubclass(type(provider), SupportsSandboxDisconnect):
                    await cast("SupportsSandboxDisconnect", provider).disconnect_handle(self.handle())
                await self._close_provider()
                self.state, self._handle = State.DISCONNECTED, None

    async def status(self) -> SandboxStatus:
        """UNKNOWN where there is no sandbox yet or any more here, STOPPED after a stop, else what the provider says."""
        if self.state is State.STARTED:
            return await self.provider.status(self.handle())
        if self.state is State.STARTING:
            return SandboxStatus.STARTING
        return SandboxStatus.STOPPED if self.state is State.STOPPED else SandboxStatus.UNKNOWN


def _cancellations() -> int:
    """How often the running task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
