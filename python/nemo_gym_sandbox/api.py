"""The public API: one sandbox, whatever its backend.

:class:`AsyncSandbox` is written once against the provider protocol, so any object with a provider's methods will do.
:class:`Sandbox` is the same for code without an event loop.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from nemo_gym_sandbox import telemetry
from nemo_gym_sandbox._cleanup import finish
from nemo_gym_sandbox._lifecycle import CLEANUP_TIMEOUT_S, Lifecycle
from nemo_gym_sandbox._paths import inside
from nemo_gym_sandbox.providers.base import (
    ConnectableProvider,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    SupportsSandboxBackgroundServices,
    SupportsSandboxDefaults,
    SupportsSandboxEndpoint,
    SupportsSandboxExecStream,
    SupportsSandboxPauseResume,
    SupportsSandboxSidecars,
)
from nemo_gym_sandbox.providers.registry import create_provider

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from nemo_gym_sandbox._pty import SandboxPty
    from nemo_gym_sandbox._sidecar import SandboxSidecar
    from nemo_gym_sandbox._streams import Stdin, TextCallback
    from nemo_gym_sandbox._sync import Sandbox

__all__ = ["AsyncSandbox", "Sandbox", "SandboxPty", "SandboxSidecar"]

_LATER = {"Sandbox": "_sync", "SandboxPty": "_pty", "SandboxSidecar": "_sidecar"}


def __getattr__(name: str) -> Any:
    """Load what not every user needs when it is first asked for: importing this package has to be quick."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"nemo_gym_sandbox.{_LATER[name]}"), name)


class AsyncSandbox:
    """One sandbox: create it, run commands in it, stop it.

    ``provider`` is a mapping ``{name: configuration}`` or an object with a provider's methods. With ``owns_provider``
    the provider is closed by :meth:`stop`. As an async context manager it stops on exit, and does not start on entry.
    All methods may be called concurrently, from one event loop.
    """

    def __init__(
        self,
        provider: SandboxProvider | Mapping[str, Any],
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool = True,
    ) -> None:
        given: Any = provider
        if given is None or isinstance(given, (str, bytes, int, float, list, tuple, type)):
            raise TypeError(
                "provider must be a mapping {name: configuration} or an object with a provider's methods, "
                f"not {_called(cast('object', given))}"
            )
        backend: Any = create_provider(provider) if isinstance(provider, Mapping) else provider
        self._life = Lifecycle(
            cast("SandboxProvider", backend), self._tell_defaults, self._has_defaults, owns_provider=owns_provider
        )
        self._spec = spec
        self._default_user: str | int | None = None
        self._default_workdir: str | None = None
        self._told_defaults: tuple[str | int | None, str | None] = (None, None)
        self._pty: SandboxPty | None = None

    # ---- what it is

    @property
    def provider(self) -> SandboxProvider:
        """The backend."""
        return self._life.provider

    @property
    def provider_name(self) -> str:
        """The backend's name, for example ``"docker"``."""
        return self._life.provider_name

    @property
    def spec(self) -> SandboxSpec | None:
        """What the sandbox was, or is to be, created from."""
        return self._spec

    @property
    def sandbox_id(self) -> str | None:
        """The backend's id of the sandbox while there is one."""
        return self._life.sandbox_id

    @property
    def pty(self) -> SandboxPty:
        """Interactive sessions."""
        if self._pty is None:
            from nemo_gym_sandbox._pty import SandboxPty

            self._pty = SandboxPty(self)
        return self._pty

    def started_handle(self) -> SandboxHandle:
        """The provider's handle. Raises RuntimeError when the sandbox is not running."""
        return self._life.handle()

    # ---- start and stop

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox, write ``spec.files`` and return once commands can run.

        A ``spec`` given here wins over the constructor's. Raises ValueError when there is none, RuntimeError when the
        sandbox was started before, SandboxCreateError when it cannot be made. What fails or is cancelled leaves nothing
        behind.
        """
        self._life.check_startable()
        if spec is None:
            spec = self._spec
        if spec is None:
            raise ValueError("start() requires a SandboxSpec, here or in the constructor")
        if isinstance(spec, (Mapping, str, type)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"spec must be a SandboxSpec, not {_called(spec)}")
        if spec.sidecars:
            self._with_sidecars()
        self._spec = spec
        self._told_defaults = None, spec.workdir  # what the provider finds in the spec
        await self._life.start(spec)
        return self

    async def start_with_setup(
        self, spec: SandboxSpec | None, setup: Callable[[Self], Awaitable[object] | object]
    ) -> Self:
        """Start the sandbox, then run ``setup`` against it.

        If ``setup`` raises or is cancelled, the sandbox is stopped before that goes on.
        """
        await self.start(spec)
        try:
            answer = setup(self)
            if inspect.isawaitable(answer):
                await answer
        except BaseException:
            await self._life.undo()
            raise
        return self

    async def stop(self) -> None:
        """End the sandbox, then close the provider if it is owned.

        May be called at any time, repeatedly and concurrently; a start that is under way is cancelled. When closing
        fails the error is raised, the sandbox counts as running, and the next call tries again.
        """
        await self._life.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- commands

    async def exec(
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
        """Run a shell command, optionally keeping the services that it starts for later commands.

        ``cwd`` and ``user`` default to the sandbox's. What the command does, a timeout included, is in the result and
        not an exception. ``preserve_background_services`` selects the provider's service-preserving execution where it
        has one; services must redirect stdout and stderr.

        ``on_stdout`` and ``on_stderr`` receive text as it arrives, in order; a coroutine function is awaited before
        more is read, and an error in either ends the command and is raised. A channel with a callback is not kept: its
        field of the result is None, and memory stays flat. ``stdin`` is bytes, text, or an iterable of bytes, also an
        asynchronous one. These three need a provider with ``exec_stream`` (NotImplementedError otherwise).
        """
        handle = self._life.handle()
        streamed = on_stdout is not None or on_stderr is not None or stdin is not None
        if streamed and preserve_background_services:
            raise ValueError("preserve_background_services cannot be combined with on_stdout, on_stderr or stdin")
        options: dict[str, Any] = {
            "cwd": self.exec_cwd(cwd),
            "env": env,
            "timeout_s": timeout_s,
            "user": self.exec_user(user),
        }
        if streamed:
            work = self._exec_stream(handle, command, options, on_stdout, on_stderr, stdin)
        elif preserve_background_services:
            work = self._exec_with_services(handle, command, options)
        else:
            work = self._life.provider.exec(handle, command, **options)
        recorder = telemetry.recorder()
        if recorder is None:
            return await work
        with recorder.span("exec", self.provider_name, handle.sandbox_id) as span:
            result = await work
            span.result(result)
            return result

    def exec_cwd(self, cwd: str | None) -> str | None:
        """Where a command runs that asks for ``cwd``: there, else in the default directory, else in the spec's."""
        if cwd is None:
            cwd = self._default_workdir
        if cwd is None and self._spec is not None:
            cwd = self._spec.workdir
        return cwd

    def exec_user(self, user: str | int | None) -> str | int | None:
        """Whom a command runs as that asks for ``user``: that one, else the default user, else (None) the image's."""
        return self._default_user if user is None else user

    async def _exec_with_services(
        self, handle: SandboxHandle, command: str, options: dict[str, Any]
    ) -> SandboxExecResult:
        provider = self._life.provider
        if not isinstance(provider, SupportsSandboxBackgroundServices):
            return await provider.exec(handle, command, **options)
        extra = {key: options.pop(key) for key in ("env", "user")}
        given = {key: value for key, value in extra.items() if value is not None}
        if given and not _accepts(provider.exec_with_background_services, given):
            raise ValueError(
                f"The service-preserving exec of sandbox provider {self.provider_name!r} does not support per-command env or user"
            )
        return await provider.exec_with_background_services(handle, command, **options, **given)

    async def _exec_stream(
        self,
        handle: SandboxHandle,
        command: str,
        options: dict[str, Any],
        on_stdout: TextCallback | None,
        on_stderr: TextCallback | None,
        stdin: Stdin | None,
    ) -> SandboxExecResult:
        for name, callback in (("on_stdout", on_stdout), ("on_stderr", on_stderr)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
        provider = self._life.provider
        # On the class: a test double's object answers to every name.
        if not issubclass(type(provider), SupportsSandboxExecStream):
            raise NotImplementedError(
                f"Sandbox provider {self.provider_name!r} does not support on_stdout, on_stderr or stdin"
            )
        from nemo_gym_sandbox._streams import TextFeed, stdin_source

        out = TextFeed(on_stdout) if on_stdout is not None else None
        err = TextFeed(on_stderr) if on_stderr is not None else None
        source = None if stdin is None else stdin_source(stdin)
        result = await cast("SupportsSandboxExecStream", provider).exec_stream(
            handle, command, **options, on_stdout=out, on_stderr=err, stdin=source
        )
        changes: dict[str, Any] = {}
        for channel, feed in (("stdout", out), ("stderr", err)):
            if feed is not None:
                await feed.finish()
                changes[channel] = None
        return dataclasses.replace(result, **changes) if changes else result

    def set_default_user(self, user: str | int | None) -> None:
        """Change whom later commands run as when they do not say; None is the image's user again.

        :meth:`serialize` carries it, so that whoever connects gets the same default.
        """
        self._default_user = user

    def set_default_workdir(self, workdir: str | None) -> None:
        """Change where later commands run when they do not say; None is the spec's directory again.

        The directory is neither made nor changed. :meth:`serialize` carries the new default.
        """
        self._default_workdir = workdir

    def _has_defaults(self) -> bool:
        return self._default_user is not None or self._default_workdir is not None

    async def _tell_defaults(self, handle: SandboxHandle) -> None:
        """Let the provider know of changed defaults, before something other than a command depends on them."""
        defaults = (self._default_user, self.exec_cwd(None))
        provider = self._life.provider
        if defaults == self._told_defaults or not issubclass(type(provider), SupportsSandboxDefaults):
            return
        user, workdir = defaults
        await cast("SupportsSandboxDefaults", provider).set_defaults(handle, user=user, workdir=workdir)
        self._told_defaults = defaults

    # ---- files

    async def upload(self, local: str | os.PathLike[str], remote: str | os.PathLike[str]) -> None:
        """Copy one local file into the sandbox, making the target's parents."""
        handle = self._life.handle()
        await self._tell_defaults(handle)
        await self._life.provider.upload_file(handle, Path(local), inside(remote))

    async def download(self, remote: str | os.PathLike[str], local: str | os.PathLike[str]) -> None:
        """Copy one file of the sandbox to the local file system, making the target's parents."""
        handle = self._life.handle()
        await self._tell_defaults(handle)
        await self._life.provider.download_file(handle, inside(remote), Path(local))

    async def upload_dir(
        self, local: str | os.PathLike[str], remote: str | os.PathLike[str], *, concurrency: int = 8
    ) -> None:
        """Copy what is in a local directory into one of the sandbox, which is made where it is missing.

        Kept are empty directories, permissions (of the directory itself only its content's), and links as links,
        whatever they lead to. Not kept are owners, times and hard links; sockets, pipes and devices are left out with a
        warning. What exists in the sandbox under other names stays. ``concurrency`` files are copied at a time.

        Links, empty directories and unusual permissions need a shell in the sandbox; a tree without them does not.
        Raises ValueError for a name that is not UTF-8. After a failure a part of the files may be there.
        """
        self._life.handle()
        from nemo_gym_sandbox import _trees

        await _trees.upload(self, Path(local), inside(remote), concurrency)

    async def download_dir(
        self,
        remote: str | os.PathLike[str],
        local: str | os.PathLike[str],
        *,
        concurrency: int = 8,
        outside_links: Literal["refuse", "skip", "keep"] = "refuse",
    ) -> None:
        """Copy what is in a directory of the sandbox into a local one, which is made where it is missing.

        The same is kept as by :meth:`upload_dir`, except that local directories stay open to their owner; without
        ``find`` and ``stat`` in the sandbox permissions are told by what can be executed. It needs a shell there.

        The sandbox is not trusted: nothing is written outside of ``local``, also not through links that are there
        already. A link that leads out of the tree would mean a file of this machine: ``outside_links`` refuses the
        download with RuntimeError before it begins, skips such links with a warning, or keeps them as they are.

        Raises RuntimeError when the directory cannot be listed, or has a name that is not UTF-8.
        """
        self._life.handle()
        from nemo_gym_sandbox import _trees

        await _trees.download(self, inside(remote), Path(local), concurrency, outside_links)

    # ---- state

    async def status(self) -> SandboxStatus:
        """Where the sandbox is in its life: UNKNOWN before the start, STOPPED after a stop, else what the backend says."""
        return await self._life.status()

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Resolve a port of ``spec.ports`` to an endpoint that this process can reach.

        Raises ValueError for a port that is no TCP port or was not declared, NotImplementedError when the provider has
        no endpoints.
        """
        number: Any = port
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            raise ValueError(f"A sandbox port must be an integer between 1 and 65535, not {port!r}")
        declared = () if self._spec is None else tuple(self._spec.ports)
        if port not in declared:
            raise ValueError(f"Sandbox port {port} was not declared in SandboxSpec.ports; declared: {list(declared)}")
        provider = self._life.provider
        if not isinstance(provider, SupportsSandboxEndpoint):
            raise NotImplementedError(f"Sandbox provider {self.provider_name!r} does not support service endpoints")
        answer: Any = await provider.endpoint(self._life.handle(), port)
        if not isinstance(answer, SandboxEndpoint):
            raise TypeError(
                f"Sandbox provider {self.provider_name!r} must return a SandboxEndpoint, not {type(answer).__name__}"
            )
        return answer

    async def pause(self) -> None:
        """Pause the sandbox, keeping its state. Open PTY sessions are detached."""
        handle = self._life.handle()
        await self._pauser().pause(handle)

    async def resume(self) -> None:
        """Resume the sandbox and return once it is ready.

        After a timeout the state is unknown: connect again and ask status() before a retry.
        """
        handle = self._life.handle()
        await self._pauser().resume(handle)

    def _pauser(self) -> SupportsSandboxPauseResume:
        provider = self._life.provider
        if not isinstance(provider, SupportsSandboxPauseResume):
            raise NotImplementedError(f"Sandbox provider {self.provider_name!r} does not support pause/resume")
        return provider

    def sidecar(self, name: str) -> SandboxSidecar:
        """A sidecar declared in ``SandboxSpec.sidecars``, to run commands in and read files from."""
        self._with_sidecars()
        declared = [] if self._spec is None else [getattr(sidecar, "name", "") for sidecar in self._spec.sidecars]
        if name not in declared:
            raise ValueError(f"Sidecar {name!r} was not declared in SandboxSpec.sidecars; declared: {declared}")
        self._life.handle()
        from nemo_gym_sandbox._sidecar import SandboxSidecar

        return SandboxSidecar(self._life, name)

    def _with_sidecars(self) -> None:
        if not isinstance(self._life.provider, SupportsSandboxSidecars):
            raise NotImplementedError(f"Sandbox provider {self.provider_name!r} does not support sidecars")

    # ---- other processes

    async def serialize(self, *, scope: str | None = None) -> dict[str, Any]:
        """Describe the sandbox, JSON-ready, for :meth:`connect` in another process.

        ``scope`` matters to providers that hand out leases. Neither environment nor secrets are in it. Raises
        RuntimeError when the provider has no ``connect`` or the sandbox is not running.
        """
        provider = _connectable(self._life.provider, self.provider_name, "serialize()")
        handle = self._life.handle()
        await self._tell_defaults(handle)
        answer: Any = await provider.serialize_handle(handle, scope=scope)
        if not isinstance(answer, dict):
            return cast("dict[str, Any]", answer)
        descriptor = dict(cast("dict[str, Any]", answer))
        if self._default_workdir is not None or descriptor.get("workdir") is None:
            descriptor["workdir"] = self.exec_cwd(None)
        if self._default_user is not None:
            descriptor["user"] = self._default_user
        if self._spec is not None and self._spec.ports:
            descriptor["ports"] = list(self._spec.ports)
        if self._spec is not None and self._spec.sidecars:
            descriptor["sidecars"] = [
                {"name": getattr(sidecar, "name", ""), "image": getattr(sidecar, "image", "")}
                for sidecar in self._spec.sidecars
            ]
        return descriptor

    @classmethod
    async def connect(
        cls,
        descriptor: Mapping[str, Any] | object,
        *,
        provider: SandboxProvider | Mapping[str, Any],
        owns_provider: bool = True,
    ) -> Self:
        """Rebuild a sandbox in this process from what :meth:`serialize` gave, using ``provider``.

        Its creator stays responsible for it: leave it with :meth:`disconnect`, or end it for everybody with
        :meth:`stop`. Raises RuntimeError when the provider has no ``connect``.
        """
        sandbox = cls(provider, owns_provider=owns_provider)
        try:
            backend = _connectable(sandbox.provider, sandbox.provider_name, "connect()")
            given = _as_mapping(descriptor)
            spec = SandboxSpec(  # refuses what makes no sense before anything is taken up
                workdir=given.get("workdir"), ports=given.get("ports") or (), sidecars=given.get("sidecars") or ()
            )
            handle = await backend.connect(given)
        except BaseException:
            if isinstance(provider, Mapping):  # nobody else has it
                await finish(sandbox.provider.aclose(), CLEANUP_TIMEOUT_S)
            raise
        sandbox._life.adopt(handle)
        sandbox._spec = spec
        sandbox._default_user = given.get("user")
        sandbox._told_defaults = sandbox._default_user, sandbox.exec_cwd(None)  # the provider finds them itself
        return sandbox

    async def disconnect(self) -> None:
        """Let go of a sandbox rebuilt with :meth:`connect` without stopping it; an owned provider is closed.

        RuntimeError for any other sandbox. Repeating it does nothing, and so does a stop() after it.
        """
        await self._life.disconnect()


def _called(value: object) -> str:
    """What to call a value that is of the wrong type; classes are given where an object of theirs was meant."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _accepts(method: Callable[..., object], names: Mapping[str, object]) -> bool:
    """Whether a method can be called with these keywords."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    return all(
        name in parameters
        and parameters[name].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in names
    )


def _connectable(provider: SandboxProvider, name: str, what: str) -> ConnectableProvider:
    if not isinstance(provider, ConnectableProvider):
        raise RuntimeError(
            f"Sandbox provider {name!r} does not support {what}: it needs serialize_handle and connect, as serialize() and connect() use them"
        )
    return provider


def _as_mapping(descriptor: object) -> Mapping[str, Any]:
    given: Any = descriptor
    if not isinstance(given, Mapping) and callable(getattr(given, "to_dict", None)):
        given = given.to_dict()
    if not isinstance(given, Mapping):
        raise TypeError(f"A sandbox descriptor must be a mapping, not {type(given).__name__}")
    return cast("Mapping[str, Any]", given)
