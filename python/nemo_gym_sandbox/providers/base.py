"""What a sandbox provider is: the data it exchanges, the methods it must have, and those it may have.

A provider is any object with the methods of :class:`SandboxProvider`; nothing has to be inherited. What only some
backends can do is an optional capability: a protocol of one to three methods, found with ``isinstance``.

Units: seconds for every ``*_s``, MiB for memory, GiB for disk. A command that failed is a result
(:class:`SandboxExecResult`); misuse of the API and failures of the life cycle are exceptions.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path  # noqa: TC003 - so that typing.get_type_hints works on the protocols
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

__all__ = [
    "ConnectableProvider",
    "ExecResult",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxEndpoint",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxPtyError",
    "SandboxPtySession",
    "SandboxPtySpec",
    "SandboxResources",
    "SandboxSidecarSpec",
    "SandboxSpec",
    "SandboxStatus",
    "SupportsSandboxBackgroundServices",
    "SupportsSandboxDefaults",
    "SupportsSandboxDisconnect",
    "SupportsSandboxEndpoint",
    "SupportsSandboxExecStream",
    "SupportsSandboxNetwork",
    "SupportsSandboxPauseResume",
    "SupportsSandboxPortForwarding",
    "SupportsSandboxPty",
    "SupportsSandboxPtyAttach",
    "SupportsSandboxRuntimeRequirements",
    "SupportsSandboxSharedStorage",
    "SupportsSandboxSidecars",
    "SupportsSandboxSnapshot",
]

OutputCallback: TypeAlias = Callable[[bytes], Awaitable[None] | None]
"""Receives output as it arrives, in order; an awaitable it returns is awaited before the next chunk."""

StdinSource: TypeAlias = bytes | AsyncIterable[bytes]
"""What a command reads: all of it at once, or chunks in order. The end of it is end of file."""


# ---------------------------------------------------------------- errors


class SandboxCreateError(RuntimeError):
    """Raised when a provider cannot create a sandbox."""


class SandboxCreateVerificationError(SandboxCreateError):
    """Raised when a newly created sandbox fails the provider's readiness checks."""


class SandboxPtyError(RuntimeError):
    """Raised when a PTY session fails outside normal process exit."""


# ---------------------------------------------------------------- plain data


class SandboxStatus(str, Enum):  # noqa: UP042 - its text form stays that of an enum
    """Where a sandbox is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


def _whole(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("must be a whole number")
    return int(value)


_RESOURCE_TYPES: dict[str, Callable[[Any], Any]] = {
    "cpu": float,
    "memory_mib": _whole,
    "disk_gib": _whole,
    "gpu": _whole,
    "gpu_type": str,
}


@dataclass(frozen=True)
class SandboxResources:
    """What a sandbox may use: cores, MiB of memory, GiB of disk, GPUs. ``None`` leaves the choice to the backend."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None

    @classmethod
    def from_mapping(cls, resources: Mapping[str, Any] | None) -> SandboxResources:
        """Build from plain values; numbers may be strings, ``None`` values stay unset.

        Raises ValueError for an unknown key or a value that is not of the key's type.
        """
        if resources is None:
            return cls()
        unknown = sorted(str(key) for key in resources if key not in _RESOURCE_TYPES)
        if unknown:
            raise ValueError(f"Unknown sandbox resource keys: {unknown}; expected keys: {sorted(_RESOURCE_TYPES)}")
        values: dict[str, Any] = {}
        for key, value in resources.items():
            try:
                values[key] = None if value is None else _RESOURCE_TYPES[key](value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"Invalid sandbox resource {key}={value!r}: {error}") from None
        return cls(**values)


def _resources(value: Any) -> SandboxResources:
    if isinstance(value, SandboxResources):
        return value
    if value is None or isinstance(value, Mapping):
        return SandboxResources.from_mapping(cast("Mapping[str, Any] | None", value))
    raise TypeError(f"Sandbox resources must be SandboxResources or a mapping, not {type(value).__name__}")


def _ports(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"Sandbox ports must be a list or tuple, not {type(value).__name__}")
    ports: list[int] = []
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, bool) or not isinstance(entry, (int, str)):
            raise ValueError(f"Invalid sandbox TCP port: {entry!r}")
        try:
            port = int(entry)
        except ValueError:
            raise ValueError(f"Invalid sandbox TCP port: {entry!r}") from None
        if not 1 <= port <= 65535:
            raise ValueError(f"Sandbox TCP ports must be between 1 and 65535, not {port}")
        if port in ports:
            raise ValueError(f"Duplicate sandbox TCP port: {port}")
        ports.append(port)
    return tuple(ports)


@dataclass(frozen=True)
class SandboxSidecarSpec:
    """A second container beside the sandbox, for example a recorder or a proxy.

    Raises ValueError when ``name`` or ``image`` is empty.
    """

    name: str
    image: str
    env: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    resources: SandboxResources | Mapping[str, Any] = field(default_factory=SandboxResources)

    def __post_init__(self) -> None:
        if not self.name or not self.image:
            raise ValueError(
                f"A sandbox sidecar needs a name and an image, got name={self.name!r} image={self.image!r}"
            )
        object.__setattr__(self, "resources", _resources(self.resources))


def _sidecars(value: Any) -> tuple[SandboxSidecarSpec, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"Sandbox sidecars must be a list or tuple, not {type(value).__name__}")
    sidecars: list[SandboxSidecarSpec] = []
    known = {f.name for f in fields(SandboxSidecarSpec)}
    for entry in cast("Sequence[object]", value):
        if isinstance(entry, Mapping):
            given = dict(cast("Mapping[str, Any]", entry))
            unknown = sorted(str(key) for key in given if key not in known)
            if unknown:
                raise ValueError(f"Unknown sandbox sidecar keys: {unknown}; expected keys: {sorted(known)}")
            named: dict[str, Any] = {"name": "", "image": "", **given}
            sidecars.append(SandboxSidecarSpec(**named))
        elif isinstance(entry, SandboxSidecarSpec):
            sidecars.append(entry)
        else:
            raise TypeError(f"A sandbox sidecar must be a SandboxSidecarSpec or a mapping, not {type(entry).__name__}")
    names = [sidecar.name for sidecar in sidecars]
    if len(set(names)) != len(names):
        raise ValueError(f"Sandbox sidecar names must be unique, got {names}")
    return tuple(sidecars)


@dataclass(frozen=True)
class SandboxSpec:
    """What to create.

    ``ttl_s`` ends the sandbox however its creator fares; ``ready_timeout_s`` bounds its start. ``files`` maps target
    paths to text, written before the first command. ``ports`` are the TCP ports that ``endpoint()`` may resolve.
    ``provider_options`` are the backend's own. Values of ``env``, ``files`` and ``provider_options`` may be secret,
    so the text form of a spec leaves them out.
    """

    image: str | None = None
    ttl_s: int | float | None = None
    ready_timeout_s: int | float | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    files: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    resources: SandboxResources | Mapping[str, Any] = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    ports: tuple[int, ...] | list[int] = field(default_factory=tuple[int, ...])
    sidecars: tuple[SandboxSidecarSpec, ...] | list[SandboxSidecarSpec | Mapping[str, Any]] = field(
        default_factory=tuple[SandboxSidecarSpec, ...]
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", _resources(self.resources))
        object.__setattr__(self, "ports", _ports(self.ports))
        object.__setattr__(self, "sidecars", _sidecars(self.sidecars))


@dataclass
class SandboxHandle:
    """A provider's handle to one sandbox.

    ``raw`` belongs to the provider, which may replace it (resuming does). Others pass the handle back and look no
    further.
    """

    sandbox_id: str
    provider_name: str
    raw: Any = field(repr=False)


@dataclass(frozen=True)
class SandboxExecResult:
    """What a command left.

    ``return_code`` is the exit code of a command that ran; a runtime failure without one is 125 with ``error_type``
    set (``"timeout"``, ``"sandbox"`` or ``"pty"``). A channel is ``None`` when it was not collected, for example
    because it was streamed to a callback. ``truncated`` is true when output was cut to the configured maximum; the
    head and the tail are kept.
    """

    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None
    truncated: bool = field(default=False, kw_only=True)


ExecResult = SandboxExecResult


@dataclass(frozen=True)
class SandboxEndpoint:
    """A route to a service inside a sandbox: an absolute URL, and the headers that each request needs.

    Raises ValueError when ``endpoint`` is not an absolute URL, TypeError when ``headers`` is not a mapping.
    """

    endpoint: str
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        from urllib.parse import urlsplit

        endpoint: Any = self.endpoint
        headers: Any = self.headers
        text = endpoint.strip() if isinstance(endpoint, str) else ""
        try:
            parts = urlsplit(text)
            absolute = bool(parts.scheme and parts.hostname)
        except ValueError:
            absolute = False
        if not absolute:
            raise ValueError(f"A sandbox endpoint must be an absolute URL with scheme and host, got {endpoint!r}")
        if not isinstance(headers, Mapping):
            raise TypeError(f"Sandbox endpoint headers must be a mapping, not {type(headers).__name__}")
        object.__setattr__(self, "endpoint", text)
        given = cast("Mapping[Any, Any]", headers)
        object.__setattr__(self, "headers", {str(key): str(value) for key, value in given.items()})


@dataclass(frozen=True)
class SandboxPtySpec:
    """An interactive session to open.

    ``command`` runs under the backend's interactive shell; ``None`` is the shell itself. ``pty=False`` is pipe mode:
    no terminal, stdout and stderr apart, ``rows`` and ``cols`` without meaning. A backend that cannot honor a value
    raises ValueError.
    """

    command: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = field(default=None, repr=False)
    rows: int = 24
    cols: int = 80
    user: str | int | None = None
    pty: bool = True


# ---------------------------------------------------------------- what every provider has


@runtime_checkable
class SandboxProvider(Protocol):
    """One backend, as the public API uses it.

    ``create`` gets the whole spec; ``spec.files`` are then uploaded one by one. A provider whose ``create`` writes them
    says so with a class attribute ``writes_spec_files = True``, and one whose ``upload_file`` keeps the file's
    permissions with ``keeps_file_modes = True``; otherwise ``upload_dir`` sets them with a command.
    """

    @property
    def name(self) -> str:
        """What the backend is called, for example ``"docker"``; a plain or a class attribute will do."""
        ...

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Create a sandbox and return once commands and file transfers work.

        Raises SandboxCreateError, or a subclass, when it cannot be made ready in time; nothing is left behind then.
        """
        ...

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
        """Run a shell command. Its failure, and a timeout, are results and not exceptions."""
        ...

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy one local file into the sandbox, making the target's parents."""
        ...

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy one file of the sandbox to the local file system, making the target's parents."""
        ...

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Where the sandbox is in its life."""
        ...

    async def close(self, handle: SandboxHandle) -> None:
        """End the sandbox. One that is gone already is a success; after an error the call may be repeated."""
        ...

    async def aclose(self) -> None:
        """Release what belongs to the provider as a whole, such as connections."""
        ...


# ---------------------------------------------------------------- terminals


@runtime_checkable
class SandboxPtySession(Protocol):
    """One live terminal. As an async context manager it closes itself on exit."""

    @property
    def session_id(self) -> str:
        """What another process needs to attach to it."""
        ...

    @property
    def mode(self) -> str | None:
        """``"pty"`` or ``"pipe"`` once connected, ``None`` before."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the session can no longer run commands."""
        ...

    async def read(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of output; ``b""`` when the process has exited and all was read.

        Raises TimeoutError after ``timeout_s`` seconds, SandboxPtyError when the session died without an exit.
        """
        ...

    async def read_stderr(self, timeout_s: float | None = None) -> bytes:
        """The next chunk of stderr, which only pipe mode has apart; otherwise ``b""`` once the process exited."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes, unchanged, to the terminal's input."""
        ...

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size."""
        ...

    async def send_signal(self, signal: str) -> None:
        """Deliver a signal by name, for example ``"SIGTERM"``, to the session's process group."""
        ...

    async def wait_exit(self, timeout_s: float | None = None) -> int:
        """Wait for the process to exit and return its exit code."""
        ...

    async def close(self) -> None:
        """Release the session; one that was created here is ended, an attached one lives on. Repeating is harmless."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunks of output until the end."""
        ...

    async def __aenter__(self) -> SandboxPtySession: ...

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None: ...


@runtime_checkable
class SupportsSandboxPty(Protocol):
    """Optional capability: interactive sessions."""

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> SandboxPtySession:
        """Open a session inside a sandbox."""
        ...


@runtime_checkable
class SupportsSandboxPtyAttach(Protocol):
    """Optional capability: attach to a session by id, for backends whose sessions outlive their client."""

    async def attach_pty(
        self, handle: SandboxHandle, session_id: str, *, takeover: bool = True, since: int | None = None
    ) -> SandboxPtySession:
        """Attach to an existing session.

        ``takeover`` evicts the holder, whose session then fails with SandboxPtyError; without it a held session
        refuses. ``since`` is the byte offset from which retained output is replayed first, 0 being all of it.
        """
        ...


# ---------------------------------------------------------------- other optional capabilities


@runtime_checkable
class ConnectableProvider(Protocol):
    """Optional capability: rebuild a handle in another process from a descriptor."""

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        """A JSON-serializable descriptor. ``scope`` matters to providers that hand out leases."""
        ...

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """Rebuild a live handle in this process."""
        ...


@runtime_checkable
class SupportsSandboxExecStream(Protocol):
    """Optional capability: output as it arrives, and input for the command.

    Looked for on the provider's class, never on the object, since a test double may answer to every name.
    """

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
        """Run a command like ``exec``.

        A channel with a callback is delivered to it and not collected; the callback is awaited before more is read,
        so a slow one slows the command down. ``stdin=None`` is an empty input.
        """
        ...


@runtime_checkable
class SupportsSandboxDefaults(Protocol):
    """Optional capability: be told of the defaults that ``set_default_user`` and ``set_default_workdir`` change.

    Commands carry them anyway. This is for what else depends on them, such as the owner of uploaded files; it is called
    before the next of those. Looked for on the provider's class, like ``exec_stream``.
    """

    async def set_defaults(self, handle: SandboxHandle, *, user: str | int | None, workdir: str | None) -> None:
        """Take note of both defaults; ``None`` is the image's."""
        ...


@runtime_checkable
class SupportsSandboxDisconnect(Protocol):
    """Optional capability: let go of one connected sandbox while the provider stays open.

    Looked for on the provider's class, like ``exec_stream``.
    """

    async def disconnect_handle(self, handle: SandboxHandle) -> None:
        """Release what ``connect`` took up; the sandbox lives on."""
        ...


@runtime_checkable
class SupportsSandboxBackgroundServices(Protocol):
    """Optional capability: an exec that leaves services running for later commands.

    ``env`` and ``user`` are passed only when given, and only to methods whose signature takes them.
    """

    async def exec_with_background_services(
        self, handle: SandboxHandle, command: str, *, cwd: str | None = None, timeout_s: int | float | None = None
    ) -> SandboxExecResult:
        """Run a command; services that it started, with their output redirected, live on."""
        ...


@runtime_checkable
class SupportsSandboxEndpoint(Protocol):
    """Optional capability: reach declared service ports."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Resolve a declared port to an endpoint that the caller can reach."""
        ...


@runtime_checkable
class SupportsSandboxPauseResume(Protocol):
    """Optional capability: pause and resume."""

    async def pause(self, handle: SandboxHandle) -> None:
        """Pause the sandbox, keeping its state."""
        ...

    async def resume(self, handle: SandboxHandle) -> None:
        """Resume the sandbox and return once it is ready; may replace ``handle.raw``."""
        ...


@runtime_checkable
class SupportsSandboxSidecars(Protocol):
    """Optional capability: the sidecars of ``SandboxSpec.sidecars``."""

    async def sidecar_exec(
        self,
        handle: SandboxHandle,
        sidecar: str,
        argv: list[str],
        *,
        timeout_s: int | float | None,
        on_stdout: Callable[[str], Awaitable[None] | None] | None = None,
    ) -> SandboxExecResult:
        """Run argv in the named sidecar, without a shell, and wait for its exit."""
        ...

    async def download_sidecar_file(
        self, handle: SandboxHandle, sidecar: str, source_path: str, target_path: Path
    ) -> None:
        """Copy one file of the named sidecar to the local file system."""
        ...


@runtime_checkable
class SupportsSandboxSnapshot(Protocol):
    """Optional capability: keep a sandbox's state for later sandboxes."""

    async def snapshot(self, handle: SandboxHandle, *, name: str | None = None) -> str:
        """Take a snapshot and return its id once it can be used."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot; one that is gone already is a success."""
        ...


@runtime_checkable
class SupportsSandboxNetwork(Protocol):
    """Optional capability: sandboxes that reach each other by address and name."""

    def validate_networking(self) -> None:
        """Raise NotImplementedError when the configuration does not allow it."""
        ...

    async def network_address(self, handle: SandboxHandle) -> str:
        """The IP address under which other sandboxes reach this one."""
        ...

    async def set_hosts(self, handle: SandboxHandle, hosts: Mapping[str, str]) -> None:
        """Make host names resolve to addresses inside the sandbox."""
        ...


@runtime_checkable
class SupportsSandboxRuntimeRequirements(Protocol):
    """Optional capability: kernel capabilities and shared memory that a service asks for."""

    def validate_runtime_requirements(self, cap_add: Sequence[str], shm_size: int | None) -> dict[str, str]:
        """The metadata that asks for them at create; NotImplementedError when they cannot be had."""
        ...

    async def configure_runtime(self, handle: SandboxHandle, cap_add: Sequence[str], shm_size: int | None) -> None:
        """Check, in a running sandbox, that they are there; RuntimeError when not."""
        ...


@runtime_checkable
class SupportsSandboxPortForwarding(Protocol):
    """Optional capability: ports of another sandbox on this one's loopback."""

    def validate_port_forwarding(self) -> None:
        """Raise NotImplementedError when the configuration does not allow it."""
        ...

    async def forward_ports(
        self, handle: SandboxHandle, target_address: str, ports: Sequence[int], *, ready_file: str
    ) -> None:
        """Forward until cancelled; ``ready_file`` is written inside the sandbox once it works."""
        ...


@runtime_checkable
class SupportsSandboxSharedStorage(Protocol):
    """Optional capability: storage that several sandboxes mount."""

    def shared_volume_metadata(self) -> dict[str, str]:
        """The metadata that a sandbox with shared storage needs at create."""
        ...

    def shared_volume_options(self, source: str | None, target: str, *, read_only: bool = False) -> dict[str, Any]:
        """The provider options that mount ``source`` (``None``: the whole storage) at ``target``."""
        ...
