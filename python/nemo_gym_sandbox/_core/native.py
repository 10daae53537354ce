"""The base class of the providers that are built into the library."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, ClassVar

from .. import telemetry
from .._paths import inside
from ..providers.base import (
    OutputCallback,
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    StdinSource,
)
from . import codec, streams
from .errors import exception_for, failure
from .lib import library
from .loop import Bridge, running_bridge
from .objects import NativeObject, NativeSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from .codec import Reply

__all__ = ["NativeProvider", "absolute", "traced"]


class NativeProvider:
    """A provider of the library. Subclasses give its name, and have what their backend supports among their bases; see
    :mod:`.capabilities`.

    An object can be used from several event loops, one after the other and at once.

    Raises TypeError for a configuration key that does not exist, ValueError for a value that is not valid. The backend
    is not contacted.
    """

    name: ClassVar[str]
    create_error: ClassVar[type[SandboxCreateError]] = SandboxCreateError
    verification_error: ClassVar[type[SandboxCreateVerificationError]] = SandboxCreateVerificationError

    def __init__(self, config: dict[str, Any]) -> None:
        lib = library()
        number, about = lib.provider_new(self.name, codec.encode(config))
        if about is not None:
            raise exception_for(about)
        if number <= 0:
            raise lib.failure(number, f"the provider {self.name} was not made")
        self._native = NativeObject(lib, number)

    # ---------------------------------------------------------------- life

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a sandbox, ready for commands and with the files of the spec.

        Raises ``create_error`` when it could not be made. When it fails, or is cancelled, nothing is left.
        """
        request = traced({"provider": self._native.number, "spec": codec.encode_spec(spec)})
        bridge = running_bridge()

        def undo(reply: Reply) -> asyncio.Future[Reply]:
            made = NativeSandbox(bridge.lib, reply.json()["sandbox"])
            stopping = bridge.start(codec.STOP, codec.encode({"sandbox": made.number}))
            stopping.add_done_callback(lambda _: made)  # kept until then
            return stopping

        try:
            reply = await self._call(codec.CREATE, request, bridge=bridge, undo=undo)
        except Exception as error:
            self._count_retries(getattr(error, "retries", 0))
            raise
        self._count_retries(reply.json().get("retries", 0))
        return self._handle(bridge, reply)

    def _count_retries(self, retries: int) -> None:
        for _ in range(retries):
            telemetry.record_create_retry(self.name)

    def _handle(self, bridge: Bridge, reply: Reply) -> SandboxHandle:
        made = reply.json()
        return SandboxHandle(made["id"], self.name, NativeSandbox(bridge.lib, made["sandbox"]))

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Where the sandbox is in its life."""
        return SandboxStatus((await self._on(handle, codec.STATUS)).json()["status"])

    async def close(self, handle: SandboxHandle) -> None:
        """End the sandbox and everything in it. After an error the call can be repeated."""
        await self._on(handle, codec.STOP)

    async def aclose(self) -> None:
        """Release what the provider holds. Sandboxes live on."""
        await self._call(codec.PROVIDER_CLOSE, codec.encode({"provider": self._native.number}))

    # ---------------------------------------------------------------- commands

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a shell command. Its failure, and a timeout, are results.

        ``timeout_s=None`` is the provider's default. Raises ValueError for a ``timeout_s`` that is not positive. When it
        is cancelled the command and what it started have been killed.
        """
        return await self._run(handle, command, cwd, env, timeout_s, user)

    async def exec_stream(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: StdinSource | None = None,
    ) -> SandboxExecResult:
        """Run a shell command with output as it arrives, and with input.

        A channel with a callback comes to it, in chunks of at most 64 KiB, and is ``None`` in the result. A callback
        that raises ends the command, and its exception is raised.
        """
        return await self._run(
            handle, command, cwd, env, timeout_s, user, on_stdout=on_stdout, on_stderr=on_stderr, stdin=stdin
        )

    async def _run(
        self,
        handle: SandboxHandle,
        command: str,
        cwd: str | None,
        env: Mapping[str, str] | None,
        timeout_s: int | float | None,
        user: str | int | None,
        *,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: StdinSource | None = None,
        keep_background: bool = False,
    ) -> SandboxExecResult:
        if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"command must be a str, not {type(command).__name__}")
        raw = self._raw(handle)
        request: dict[str, Any] = {"sandbox": raw.number, "command": command}
        if cwd is not None:
            request["cwd"] = inside(cwd)
        if env:
            request["env"] = codec.encode_env(env)
        if timeout_s is not None:
            request["timeout_s"] = codec.encode_timeout(timeout_s)
        if user is not None:
            request["user"] = codec.encode_user(user)
        if keep_background:
            request["keep_background"] = True
        bridge = running_bridge()
        if on_stdout is None and on_stderr is None and stdin is None:
            return await self._run_collecting(bridge, request)
        if on_stdout is not None:
            request["stdout"] = "stream"
        if on_stderr is not None:
            request["stderr"] = "stream"
        if stdin is not None:
            request["stdin"] = True
        return await self._run_streaming(bridge, request, on_stdout, on_stderr, stdin)

    async def _run_collecting(self, bridge: Bridge, request: dict[str, Any]) -> SandboxExecResult:
        reply = await self._call(codec.EXEC, traced(request), bridge=bridge, undo=_drop_outputs(bridge))
        return await _result(bridge, reply)

    async def _run_streaming(
        self,
        bridge: Bridge,
        request: dict[str, Any],
        on_stdout: OutputCallback | None,
        on_stderr: OutputCallback | None,
        stdin: StdinSource | None,
    ) -> SandboxExecResult:
        movers: dict[int, asyncio.Task[None]] = {}

        def opened(descriptor: int, stream: int) -> None:
            if descriptor == 0 and stdin is not None:
                mover = streams.feed(bridge, stream, stdin)
            else:
                callback = on_stdout if descriptor == 1 else on_stderr
                assert callback is not None, "the library opened a stream that nobody asked for"
                mover = streams.pump(bridge, stream, callback)
            movers[descriptor] = task = bridge.loop.create_task(mover)
            # A callback that fails ends the command at once, not when it prints again.
            task.add_done_callback(stop_if_failed)

        def stop_if_failed(mover: asyncio.Task[None]) -> None:
            # At once, not when the command prints or reads again.
            if not mover.cancelled() and mover.exception() is not None:
                running.cancel()

        async def run() -> Reply:
            return await self._call(
                codec.EXEC, traced(request), bridge=bridge, undo=_drop_outputs(bridge), opened=opened
            )

        running = bridge.loop.create_task(run())
        try:
            await asyncio.wait([running])
            if 0 in movers:
                await _end([movers[0]])  # nobody reads it any more
            if movers:  # what is left of the output
                await asyncio.wait(movers.values(), return_when=asyncio.FIRST_EXCEPTION)
            for mover in movers.values():
                if mover.done() and not mover.cancelled():
                    mover.result()
            return await _result(bridge, running.result(), on_stderr)
        finally:
            await _end([running])
            await _end(movers.values())

    # ---------------------------------------------------------------- files

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a local file into the sandbox, making the target's parents.

        Raises FileNotFoundError when there is no such local file.
        """
        await self._on(handle, codec.UPLOAD, local=absolute(source_path), remote=target_path)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file of the sandbox to the local file system, making the target's parents.

        Raises FileNotFoundError when the sandbox has no such file.
        """
        await self._on(handle, codec.DOWNLOAD, remote=source_path, local=absolute(target_path))

    # ---------------------------------------------------------------- for those who clear up

    async def _list(self, run: str = "", user: str = "") -> list[dict[str, Any]]:
        """The sandboxes that any process made on this backend, or one run or user, by id; capi/ngs.h tells the keys."""
        found: list[dict[str, Any]] = []
        more = True
        while more:
            after = found[-1]["sandbox_id"] if found else ""
            request = codec.encode({"provider": self._native.number, "after": after, "run": run, "user": user})
            page = (await self._call(codec.LIST, request)).json()
            found += page["sandboxes"]
            more = page["more"]
        return found

    async def _reap(self, sandbox_id: str) -> None:
        """End a sandbox, whoever uses it, and remove all of it. One that is gone is no error."""
        if not sandbox_id:
            raise ValueError("sandbox_id must not be empty")
        await self._call(codec.REAP, codec.encode({"provider": self._native.number, "id": sandbox_id}))

    async def _tidy(self) -> None:
        """Forget what dead processes noted about sandboxes that are gone."""
        await self._call(codec.REAP, codec.encode({"provider": self._native.number}))

    async def _examine(self) -> list[dict[str, str]]:
        """What the provider would work with: name, value, origin and problem of each thing."""
        reply = await self._call(codec.EXAMINE, codec.encode({"provider": self._native.number}))
        return reply.json()["facts"]

    # ---------------------------------------------------------------- plumbing

    def _raw(self, handle: SandboxHandle) -> NativeSandbox:
        if not isinstance(handle.raw, NativeSandbox):
            raise TypeError(f"the handle of {handle.provider_name} {handle.sandbox_id} is not one of {self.name}'s")
        return handle.raw

    async def _on(self, handle: SandboxHandle, op: int, **fields: Any) -> Reply:
        raw = self._raw(handle)
        return await self._call(op, traced({"sandbox": raw.number, **fields}))

    async def _call(self, op: int, request: bytes, *, bridge: Bridge | None = None, **options: Any) -> Reply:
        reply = await (bridge or running_bridge()).call(op, request, **options)
        if reply.status != 0:
            raise failure(reply, op, self.create_error, self.verification_error)
        return reply


def traced(request: dict[str, Any]) -> bytes:
    """A request with the current span in it, so that what the library does for it can join the trace."""
    parent = telemetry.traceparent()
    return codec.encode(request if parent is None else {**request, "traceparent": parent})


def absolute(path: Path) -> str:
    """The path from the root; this asks the kernel for the working directory and touches no file."""
    return os.path.abspath(path)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and wait for it; each is bounded by its own rules."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    interrupted = False
    while left := [task for task in running if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            interrupted = True
    if interrupted:
        raise asyncio.CancelledError


def _output(about: dict[str, Any], name: str) -> dict[str, Any] | None:
    return about.get(name)


def _drop_outputs(bridge: Bridge) -> Callable[[Reply], None]:
    """What becomes of a result that nobody takes: its outputs are freed."""

    def undo(reply: Reply) -> None:
        about, _ = reply.framed()
        for name in ("stdout", "stderr"):
            output = _output(about, name)
            if output is not None and "stream" in output:
                bridge.close_stream(output["stream"])

    return undo


async def _result(bridge: Bridge, reply: Reply, on_stderr: OutputCallback | None = None) -> SandboxExecResult:
    """The result of a command, with its outputs as text and the library's remark as the last line of stderr."""
    about, inline = reply.framed()
    texts: dict[str, str] = {}
    truncated = False
    at = 0
    try:
        for name in ("stdout", "stderr"):
            output = _output(about, name)
            if output is None:
                continue
            size: int = output["len"]
            truncated = truncated or output.get("omitted", 0) > 0
            stream = output.pop("stream", 0)
            if stream:
                texts[name] = await streams.read_text(bridge, stream, size, output["ascii"])
            else:
                texts[name] = str(inline[at : at + size], "utf-8", "replace")
                at += size
    finally:
        for name in ("stdout", "stderr"):  # those that were not reached
            output = _output(about, name)
            if output is not None and "stream" in output:
                bridge.close_stream(output["stream"])
    reason: str = about.get("reason", "")
    if reason and "stderr" in texts:
        printed = texts["stderr"]
        texts["stderr"] = printed + ("\n" if printed and not printed.endswith("\n") else "") + reason
    elif reason and on_stderr is not None:
        await streams.deliver(on_stderr, reason.encode())
    return SandboxExecResult(
        texts.get("stdout"),
        texts.get("stderr"),
        about["exit_code"],
        about.get("error_type") or None,
        truncated=truncated,
    )
