"""``sandbox.pty``: interactive sessions, and commands run in them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from nemo_gym_sandbox._cleanup import LoopLock, finish
from nemo_gym_sandbox._markers import MarkedOutput, Markers, typed
from nemo_gym_sandbox._timeouts import checked, waitable
from nemo_gym_sandbox.providers.base import (
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxPtyError,
    SandboxPtySession,
    SandboxPtySpec,
    SupportsSandboxPty,
    SupportsSandboxPtyAttach,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NO_EXIT_CODE = 125
_CLOSE_TIMEOUT_S = 30.0
_STDERR_QUIET_S = 0.05
_STATUS_QUIET_S = 1.0  # how long a status without a line end is waited for, before it is taken as it is


class PtyOwner(Protocol):
    """What the terminals need of their sandbox."""

    @property
    def provider_name(self) -> str: ...

    @property
    def provider(self) -> SandboxProvider: ...

    def started_handle(self) -> SandboxHandle: ...

    def exec_cwd(self, cwd: str | None) -> str | None: ...

    def exec_user(self, user: str | int | None) -> str | int | None: ...


class SandboxPty:
    """Interactive sessions of one sandbox. Reached as ``sandbox.pty``."""

    def __init__(self, owner: PtyOwner) -> None:
        self._owner = owner
        self._shells: list[SandboxPtySession] = []  # made by create() without a command, oldest first
        self._lock = LoopLock()

    async def create(
        self,
        command: str | None = None,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        rows: int = 24,
        cols: int = 80,
        user: str | int | None = None,
        pty: bool = True,
    ) -> SandboxPtySession:
        """Open an interactive session; close it before the sandbox stops.

        ``command=None`` is the default shell. ``pty=False`` is pipe mode: no terminal, stdout and stderr apart.
        ``cwd`` and ``user`` default to the sandbox's. Raises NotImplementedError when the provider has no sessions,
        SandboxPtyError when the session cannot be opened.
        """
        spec = SandboxPtySpec(
            command=command,
            cwd=self._owner.exec_cwd(cwd),
            env=env,
            rows=rows,
            cols=cols,
            user=self._owner.exec_user(user),
            pty=pty,
        )
        session = await self._open(spec)
        if command is None:
            self._shells = [*filter(_live, self._shells), session]
        return session

    async def attach(self, session_id: str, *, takeover: bool = True, since: int | None = None) -> SandboxPtySession:
        """Attach to a session that was opened earlier, here or in another process.

        ``takeover`` evicts the holder, whose session then fails with SandboxPtyError; without it a held session
        refuses. ``since`` first replays retained output from that byte offset, 0 being all of it.
        """
        provider = self._owner.provider
        if not isinstance(provider, SupportsSandboxPtyAttach):
            raise NotImplementedError(
                f"Sandbox provider {self._owner.provider_name!r} does not support re-attaching PTY sessions"
            )
        return await provider.attach_pty(self._owner.started_handle(), session_id, takeover=takeover, since=since)

    async def exec(
        self,
        command: str,
        *,
        session: SandboxPtySession | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = 180,
        user: str | int | None = None,
        rows: int = 24,
        cols: int = 80,
        pty: bool = True,
        detach: bool = False,
        poll_interval_s: float = 15.0,
    ) -> SandboxExecResult:
        """Run one command in a session and collect its output.

        Without ``session``, and without any of ``cwd``, ``env``, ``user``, another size or ``pty=False``, the oldest
        live shell of ``create()`` is used and stays open; otherwise a session is opened for the command and closed.
        Commands in live sessions run one at a time per sandbox; ``timeout_s`` covers the wait for their turn too.

        In terminal mode all output is in ``stdout`` and ``stderr`` is None. A timeout is a result with ``error_type``
        ``"timeout"`` and what was printed until then; a session given by the caller still runs the command after it
        and should be discarded. A command that ends the shell of a live session raises SandboxPtyError. Of one with a mistake
        in its grammar ``stdout`` has what the shell said, with its echo; one that is not complete is waited for.

        ``detach=True`` holds no connection while the command works: every ``poll_interval_s`` seconds the session is
        attached for a moment. The output comes back as one stream; more than the backend retains between two looks
        raises SandboxPtyError. It never uses the shell of ``create()`` unless that is passed as ``session``.
        """
        if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"command must be a str, not {type(command).__name__}")
        timeout_s = waitable(checked(timeout_s))
        if session is not None and (cwd is not None or env is not None or user is not None):
            raise ValueError("cwd, env and user of a PTY session are fixed at pty.create; they cannot be given with it")
        if detach:
            return await self._exec_detached(
                command,
                session,
                SandboxPtySpec(None, self._owner.exec_cwd(cwd), env, rows, cols, self._owner.exec_user(user), pty),
                timeout_s,
                poll_interval_s,
            )
        if session is not None:
            return await self._exec_live(command, session, timeout_s, given=True)
        shaped = cwd is not None or env is not None or user is not None or (rows, cols) != (24, 80) or not pty
        if not shaped:
            shell = self._default_shell()
            if shell is not None:
                return await self._exec_live(command, shell, timeout_s, given=False)
        spec = SandboxPtySpec(command, self._owner.exec_cwd(cwd), env, rows, cols, self._owner.exec_user(user), pty)
        return await self._exec_private(spec, timeout_s)

    # ---- sessions

    async def _open(self, spec: SandboxPtySpec) -> SandboxPtySession:
        provider = self._owner.provider
        if not isinstance(provider, SupportsSandboxPty):
            raise NotImplementedError(
                f"Sandbox provider {self._owner.provider_name!r} does not support PTY sessions; use sandbox.exec()"
            )
        return await provider.create_pty(self._owner.started_handle(), spec)

    def _default_shell(self) -> SandboxPtySession | None:
        self._shells = [*filter(_live, self._shells)]
        return self._shells[0] if self._shells else None

    async def _retire(self, session: SandboxPtySession) -> None:
        """Close a session whose stream is of no use any more. What that fails with is not the caller's concern."""
        self._shells = [shell for shell in self._shells if shell is not session]
        with contextlib.suppress(Exception):
            await finish(session.close(), _CLOSE_TIMEOUT_S)

    # ---- a session for one command

    async def _exec_private(self, spec: SandboxPtySpec, timeout_s: float | None) -> SandboxExecResult:
        stdout, stderr = bytearray(), bytearray()
        session: SandboxPtySession | None = None
        budget = asyncio.timeout(timeout_s)
        try:
            async with budget:
                session = await self._open(spec)
                async with asyncio.TaskGroup() as readers:
                    readers.create_task(_drain(session.read, stdout))
                    readers.create_task(_drain(session.read_stderr, stderr))
                code = await session.wait_exit()
        except TimeoutError:
            if not budget.expired():
                raise
            return _timed_out(stdout, None if spec.pty else stderr, timeout_s)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            if session is not None:
                await self._retire(session)
        return SandboxExecResult(_text(stdout), None if spec.pty else _text(stderr), code)

    # ---- a command typed into a live session

    async def _exec_live(
        self, command: str, session: SandboxPtySession, timeout_s: float | None, *, given: bool
    ) -> SandboxExecResult:
        markers = Markers.new()
        line = typed(command, markers)
        output = MarkedOutput(markers)
        stderr = bytearray()
        running = False
        budget = asyncio.timeout(timeout_s)
        try:
            async with budget, self._lock.here():
                running = True
                await session.write(line)
                await _collect(session, output, stderr)
        except TimeoutError:
            if not budget.expired():
                raise
            if running and not given:
                await self._retire(session)
            note = "; the session still runs it and should be discarded" if running and given else ""
            return _timed_out(output.output, stderr, timeout_s, note)
        except asyncio.CancelledError:
            if running and not given:  # nobody can read past what the abandoned command goes on printing
                await self._retire(session)
            raise
        status = output.status
        if status is None:
            return SandboxExecResult(_text(output.output), _text(stderr) or None, NO_EXIT_CODE, "pty")
        return SandboxExecResult(_text(output.output), _text(stderr) or None, status)

    # ---- a command that no connection is held for

    async def _exec_detached(
        self,
        command: str,
        given: SandboxPtySession | None,
        spec: SandboxPtySpec,
        timeout_s: float | None,
        poll_interval_s: float,
    ) -> SandboxExecResult:
        session = given
        running = False
        budget = asyncio.timeout(timeout_s)
        try:
            async with budget, self._lock.here():
                if session is None:
                    session = await self._open(spec)
                run: Any = getattr(session, "run_detached", None)
                if not callable(run):
                    raise NotImplementedError(
                        f"PTY sessions of sandbox provider {self._owner.provider_name!r} do not support detached execution"
                    )
                running = True
                answer: Any = run(command, poll_interval_s=poll_interval_s)
                merged, code = await answer
        except TimeoutError:
            if not budget.expired():
                raise
            if running and given is not None:
                await self._reattach(given)
            return _timed_out(b"", b"", timeout_s)
        finally:
            if given is None and session is not None:
                await self._retire(session)
        text = _text(merged)
        return (
            SandboxExecResult(text, None, NO_EXIT_CODE, "pty") if code is None else SandboxExecResult(text, None, code)
        )

    async def _reattach(self, session: SandboxPtySession) -> None:
        """Give the caller's session back attached, as it came."""
        reattach: Any = getattr(session, "reattach", None)
        if callable(reattach):
            answer: Any = reattach()
            with contextlib.suppress(Exception):
                await finish(answer, _CLOSE_TIMEOUT_S)


def _live(session: SandboxPtySession) -> bool:
    return getattr(session, "closed", False) is not True


async def _drain(read: Any, into: bytearray) -> None:
    while chunk := await read():
        into += chunk


async def _chunks(session: SandboxPtySession, output: MarkedOutput) -> AsyncIterator[bytes]:
    """The session's output until the end marker's line is complete."""
    while not output.complete:
        try:
            chunk = await session.read(timeout_s=_STATUS_QUIET_S if output.has_status else None)
        except TimeoutError:
            if output.has_status:
                return
            raise
        if not chunk:
            if output.has_status:
                return
            raise SandboxPtyError("the PTY session ended before the command finished")
        yield chunk


async def _collect(session: SandboxPtySession, output: MarkedOutput, stderr: bytearray) -> None:
    """Read until the command has ended. Only pipe mode has a stderr; it is read beside, so that it blocks nothing."""
    if getattr(session, "mode", None) == "pty":
        async for chunk in _chunks(session, output):
            output.feed(chunk)
        return
    done = asyncio.Event()
    beside = asyncio.ensure_future(_collect_stderr(session, stderr, done))
    try:
        async for chunk in _chunks(session, output):
            output.feed(chunk)
        done.set()
        await beside
    finally:
        if not beside.done():
            beside.cancel()


async def _collect_stderr(session: SandboxPtySession, into: bytearray, done: asyncio.Event) -> None:
    while True:
        last = done.is_set()
        try:
            chunk = await session.read_stderr(timeout_s=_STDERR_QUIET_S)
        except TimeoutError:
            if last:
                return
            with contextlib.suppress(TimeoutError):  # should read_stderr not wait, this does
                await asyncio.wait_for(done.wait(), _STDERR_QUIET_S)
            continue
        if not chunk:
            return
        into += chunk


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", errors="replace")


def _timed_out(
    stdout: bytes | bytearray, stderr: bytes | bytearray | None, timeout_s: float | None, note: str = ""
) -> SandboxExecResult:
    before = _text(stderr or b"")
    if before and not before.endswith("\n"):
        before += "\n"
    line = f"PTY command timed out after {timeout_s:g}s{note}"
    return SandboxExecResult(_text(stdout), before + line, NO_EXIT_CODE, "timeout")
