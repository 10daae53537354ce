"""``Sandbox.pty``: interactive sessions for code without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from nemo_gym_sandbox.providers.base import SandboxPtyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    from nemo_gym_sandbox._loop_thread import LoopThread
    from nemo_gym_sandbox._pty import SandboxPty
    from nemo_gym_sandbox.providers.base import SandboxExecResult, SandboxPtySession


P = ParamSpec("P")
T = TypeVar("T")


class SyncSandboxPtySession:
    """One live terminal whose methods wait. As a context manager it closes itself on exit."""

    def __init__(self, thread: LoopThread, session: SandboxPtySession) -> None:
        self._thread = thread
        self.session = session

    @property
    def session_id(self) -> str:
        """What another process needs to attach to it."""
        return self.session.session_id

    @property
    def mode(self) -> str | None:
        """``"pty"`` or ``"pipe"`` once connected."""
        return self.session.mode

    @property
    def closed(self) -> bool:
        """Whether the session can no longer run commands, which includes the end of its sandbox here."""
        return self._thread.closed or self.session.closed

    def read(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of output, ``b""`` at the end; TimeoutError after ``timeout_s`` seconds."""
        return self._run(self.session.read, timeout_s=timeout_s)

    def read_stderr(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of stderr, which only pipe mode has apart."""
        return self._run(self.session.read_stderr, timeout_s=timeout_s)

    def write(self, data: bytes) -> None:
        """Send bytes, unchanged, to the terminal's input."""
        self._run(self.session.write, data)

    def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size."""
        self._run(self.session.resize, rows, cols)

    def send_signal(self, signal: str) -> None:
        """Deliver a signal by name to the session's process group."""
        self._run(self.session.send_signal, signal)

    def wait_exit(self, timeout_s: float | None = None) -> int:
        """Wait for the process to exit and return its exit code."""
        return self._run(self.session.wait_exit, timeout_s=timeout_s)

    def detach(self) -> None:
        """Drop the connection while the session lives on, where the provider can."""
        self._run(self._optional("detach"))

    def reattach(self) -> None:
        """Connect a detached session again, with what was printed since."""
        self._run(self._optional("reattach"))

    def run_detached(self, command: str, poll_interval_s: float = 15.0) -> tuple[bytes, int | None]:
        """Run one command, looking for its end every ``poll_interval_s`` seconds."""
        return self._run(self._optional("run_detached"), command, poll_interval_s=poll_interval_s)

    def _optional(self, name: str) -> Any:
        method = getattr(self.session, name, None)
        if not callable(method):
            raise NotImplementedError(f"PTY sessions of this sandbox provider have no {name}()")
        return method

    def close(self) -> None:
        """Release the session. Repeating is harmless, and so it is when the sandbox was stopped or disconnected."""
        if not self._thread.closed:
            self._run(self.session.close)

    def _run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._thread.closed:
            raise SandboxPtyError(
                f"PTY session {self.session_id} is closed: its sandbox is stopped or disconnected, and the sync loop is closed"
            )
        return self._thread.run(function, *args, **kwargs)

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()


class SyncSandboxPty:
    """Interactive sessions of one sandbox. Reached as ``sandbox.pty``; same methods as the asynchronous one."""

    def __init__(self, thread: LoopThread, pty: SandboxPty) -> None:
        self._thread = thread
        self._pty = pty

    def create(
        self,
        command: str | None = None,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        rows: int = 24,
        cols: int = 80,
        user: str | int | None = None,
        pty: bool = True,
    ) -> SyncSandboxPtySession:
        """Open an interactive session; close it before the sandbox stops."""
        session = self._thread.run(
            self._pty.create, command, cwd=cwd, env=env, rows=rows, cols=cols, user=user, pty=pty
        )
        return SyncSandboxPtySession(self._thread, session)

    def attach(self, session_id: str, *, takeover: bool = True, since: int | None = None) -> SyncSandboxPtySession:
        """Attach to a session that was opened earlier."""
        session = self._thread.run(self._pty.attach, session_id, takeover=takeover, since=since)
        return SyncSandboxPtySession(self._thread, session)

    def exec(
        self,
        command: str,
        *,
        session: SyncSandboxPtySession | SandboxPtySession | None = None,
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
        """Run one command in a session and collect its output."""
        return self._thread.run(
            self._pty.exec,
            command,
            session=session.session if isinstance(session, SyncSandboxPtySession) else session,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            user=user,
            rows=rows,
            cols=cols,
            pty=pty,
            detach=detach,
            poll_interval_s=poll_interval_s,
        )
