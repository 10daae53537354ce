"""Providers as a user would write them: plain Python, in memory, nothing inherited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox import SandboxEndpoint, SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], object], deadline_s: float = 5) -> None:
    """Let other tasks run until the condition holds."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to instrument
            await asyncio.sleep(0)


class MemoryProvider:
    """The required methods only. ``fail`` maps a method's name to errors, raised one per call."""

    name = "memory"

    def __init__(self, **fail: list[BaseException]) -> None:
        self.fail = fail
        self.calls: list[str] = []
        self.specs: list[SandboxSpec] = []
        self.handles: list[SandboxHandle] = []
        self.execs: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.state = SandboxStatus.RUNNING

    def hold(self, method: str) -> tuple[asyncio.Event, asyncio.Event]:
        """Make a method wait. Returns what is set when it got there, and what lets it go on."""
        self.gates[method], self.reached[method] = asyncio.Event(), asyncio.Event()
        return self.reached[method], self.gates[method]

    async def _enter(self, method: str) -> None:
        self.calls.append(method)
        if method in self.gates:
            self.reached[method].set()
            await self.gates[method].wait()
        if self.fail.get(method):
            raise self.fail[method].pop(0)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        await self._enter("create")
        self.specs.append(spec)
        handle = SandboxHandle(f"box-{len(self.handles)}", self.name, object())
        self.handles.append(handle)
        return handle

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        self.execs.append((command, {"handle": handle, "cwd": cwd, "env": env, "timeout_s": timeout_s, "user": user}))
        await self._enter("exec")
        return SandboxExecResult(f"ran {command}", "", 0)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        await self._enter("upload_file")
        assert isinstance(source_path, Path)
        assert isinstance(target_path, str)
        self.files[target_path] = source_path.read_bytes()  # noqa: ASYNC240

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        await self._enter("download_file")
        assert isinstance(source_path, str)
        assert isinstance(target_path, Path)
        target_path.write_bytes(self.files[source_path])  # noqa: ASYNC240

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        await self._enter("status")
        return self.state

    async def close(self, handle: SandboxHandle) -> None:
        await self._enter("close")

    async def aclose(self) -> None:
        await self._enter("aclose")


class FullProvider(MemoryProvider):
    """With the optional capabilities that the facade itself uses, terminals apart."""

    name = "full"

    def __init__(self, **fail: list[BaseException]) -> None:
        super().__init__(**fail)
        self.defaults: list[tuple[str | int | None, str | None]] = []
        self.sidecar_calls: list[tuple[Any, ...]] = []
        self.streams: list[dict[str, Any]] = []
        self.script: list[tuple[str, bytes]] = []  # what a streamed exec prints, channel by channel
        self.stdin: bytes | None = None
        self.services: list[tuple[str, dict[str, Any]]] = []

    async def set_defaults(self, handle: SandboxHandle, *, user: str | int | None, workdir: str | None) -> None:
        await self._enter("set_defaults")
        self.defaults.append((user, workdir))

    async def exec_stream(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
        on_stdout: Any = None,
        on_stderr: Any = None,
        stdin: Any = None,
    ) -> SandboxExecResult:
        self.streams.append({"command": command, "cwd": cwd, "env": env, "timeout_s": timeout_s, "user": user})
        if isinstance(stdin, bytes):
            self.stdin = stdin
        elif stdin is not None:
            self.stdin = b"".join([chunk async for chunk in stdin])
        kept = {"stdout": b"", "stderr": b""}
        for channel, data in self.script:
            callback = on_stdout if channel == "stdout" else on_stderr
            if callback is None:
                kept[channel] += data
                continue
            waits = callback(data)
            if waits is not None:
                await waits
        return SandboxExecResult(kept["stdout"].decode(), kept["stderr"].decode(), 0)

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
        self.services.append((command, {"cwd": cwd, "timeout_s": timeout_s, "env": env, "user": user}))
        return SandboxExecResult("served", "", 0)

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        await self._enter("endpoint")
        return SandboxEndpoint(f"http://127.0.0.1:{port + 1}")

    async def pause(self, handle: SandboxHandle) -> None:
        await self._enter("pause")
        self.state = SandboxStatus.PAUSED

    async def resume(self, handle: SandboxHandle) -> None:
        await self._enter("resume")
        self.state = SandboxStatus.RUNNING
        handle.raw = "renewed"

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        await self._enter("serialize_handle")
        return {"sandbox_id": handle.sandbox_id, "scope": scope}

    async def disconnect_handle(self, handle: SandboxHandle) -> None:
        await self._enter("disconnect_handle")

    async def connect(self, descriptor: Any) -> SandboxHandle:
        await self._enter("connect")
        return SandboxHandle(descriptor["sandbox_id"], self.name, "connected")

    async def sidecar_exec(
        self, handle: SandboxHandle, sidecar: str, argv: list[str], *, timeout_s: Any, on_stdout: Any = None
    ) -> SandboxExecResult:
        self.sidecar_calls.append(("exec", sidecar, argv, timeout_s))
        if on_stdout is not None:
            on_stdout("following")
        return SandboxExecResult("sidecar", "", 0)

    async def download_sidecar_file(
        self, handle: SandboxHandle, sidecar: str, source_path: str, target_path: Path
    ) -> None:
        self.sidecar_calls.append(("download", sidecar, source_path))
        target_path.write_text("from the sidecar")  # noqa: ASYNC240
