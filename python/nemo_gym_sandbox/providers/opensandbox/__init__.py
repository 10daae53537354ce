"""Sandboxes of an OpenSandbox server, over its REST service and the daemon in each sandbox; no SDK is needed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from weakref import WeakKeyDictionary

from nemo_gym_sandbox._core import pty as native_pty
from nemo_gym_sandbox._core.capabilities import (
    NativeDefaults,
    NativeEndpoints,
    NativePausing,
    NativeReconnection,
    NativeServices,
)
from nemo_gym_sandbox.attribution import log_attribution_once, resolve_attribution, resolve_run_id
from nemo_gym_sandbox.providers import _options as check
from nemo_gym_sandbox.providers.base import SandboxCreateError, SandboxCreateVerificationError, SandboxPtyError
from nemo_gym_sandbox.providers.opensandbox._config import (
    OpenSandboxAttributionConfig,
    OpenSandboxConnectionConfig,
    OpenSandboxCreateConfig,
    OpenSandboxNetworkingConfig,
    OpenSandboxOperationsConfig,
    OpenSandboxProbeConfig,
    OpenSandboxRuntimeRequirementsConfig,
    OpenSandboxSharedStorageConfig,
)
from nemo_gym_sandbox.providers.opensandbox._networking import OpenSandboxNetworking
from nemo_gym_sandbox.providers.opensandbox.pty import OpenSandboxPtySession, of_sandbox

if TYPE_CHECKING:
    from nemo_gym_sandbox.providers.base import (
        SandboxHandle,
        SandboxPtySpec,
        SandboxSpec,
    )

__all__ = [
    "OpenSandboxAttributionConfig",
    "OpenSandboxConnectionConfig",
    "OpenSandboxCreateConfig",
    "OpenSandboxCreateError",
    "OpenSandboxCreateTimeoutError",
    "OpenSandboxCreateVerificationError",
    "OpenSandboxNetworkingConfig",
    "OpenSandboxOperationsConfig",
    "OpenSandboxProbeConfig",
    "OpenSandboxProvider",
    "OpenSandboxRuntimeRequirementsConfig",
    "OpenSandboxSharedStorageConfig",
]

_CHECK_TIMEOUT_S: Final = 60


class OpenSandboxCreateError(SandboxCreateError):
    """Raised when a sandbox cannot be created or connected to."""


class OpenSandboxCreateTimeoutError(OpenSandboxCreateError):
    """Raised when a sandbox was not made, or not ready, in time."""


class OpenSandboxCreateVerificationError(OpenSandboxCreateError, SandboxCreateVerificationError):
    """Raised when a new sandbox fails its readiness check."""


_BY_KIND: Final[dict[str, type[OpenSandboxCreateError]]] = {
    "timeout": OpenSandboxCreateTimeoutError,
    "verification": OpenSandboxCreateVerificationError,
}


_OPTION_TYPES: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "image_auth": (Mapping, "a mapping"),
    "network_policy": (Mapping, "a mapping"),
    "platform": (Mapping, "a mapping"),
    "snapshot_id": (str, "a string"),
    "volumes": ((list, tuple), "a list of mappings"),
    "skip_health_check": (bool, "a boolean"),
    "extensions": (Mapping, "a mapping"),
    "resource_requests": ((Mapping, str), "a mapping or 'limits'"),
}


def _check_options(options: Any) -> None:
    """Raise TypeError for an option of another type than it has to be."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise TypeError(f"provider_options must be a mapping, not {type(options).__name__}")
    given = cast("Mapping[str, Any]", options)
    for name, (kind, text) in _OPTION_TYPES.items():
        value = given.get(name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"provider option {name} must be {text}, not {type(value).__name__}")
    for volume in cast("Sequence[object]", given.get("volumes") or ()):
        if not isinstance(volume, Mapping):
            raise TypeError(f"provider option volumes must be a list of mappings, not of {type(volume).__name__}")


def _texts(values: Mapping[Any, Any] | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (values or {}).items()}


def _in_text(spec: SandboxSpec) -> SandboxSpec:
    """The spec with text where the server knows nothing else: a configuration file has numbers there, too."""
    options: dict[str, Any] = spec.provider_options or {}
    if options.get("extensions"):
        options = {**options, "extensions": _texts(options["extensions"])}
    return replace(spec, env=_texts(spec.env), metadata=_texts(spec.metadata), provider_options=options)


class OpenSandboxProvider(
    NativeReconnection, NativeDefaults, NativeEndpoints, NativePausing, NativeServices, OpenSandboxNetworking
):
    """Runs each sandbox on an OpenSandbox server.

    Each block is a mapping of its keys or its dataclass. Raises TypeError for a key that does not exist, ValueError for
    a value that makes no sense. The server is not contacted.

    With ``connection.use_server_proxy`` the headers of an endpoint hold the server's key. Services outlive their command
    if their output was redirected; a timeout of that command is a result with ``return_code`` 124 and ends them too.
    """

    name: ClassVar[str] = "opensandbox"
    writes_spec_files: ClassVar[bool] = True
    keeps_file_modes: ClassVar[bool] = True
    create_error: ClassVar[type[SandboxCreateError]] = OpenSandboxCreateError

    @check.named_keywords
    def __init__(
        self,
        connection: Mapping[str, Any] | OpenSandboxConnectionConfig | None = None,
        create: Mapping[str, Any] | OpenSandboxCreateConfig | None = None,
        probe: Mapping[str, Any] | OpenSandboxProbeConfig | None = None,
        operations: Mapping[str, Any] | OpenSandboxOperationsConfig | None = None,
        attribution: Mapping[str, Any] | OpenSandboxAttributionConfig | None = None,
        networking: Mapping[str, Any] | OpenSandboxNetworkingConfig | None = None,
        shared_storage: Mapping[str, Any] | OpenSandboxSharedStorageConfig | None = None,
        runtime_requirements: Mapping[str, Any] | OpenSandboxRuntimeRequirementsConfig | None = None,
    ) -> None:
        connect = check.block(OpenSandboxConnectionConfig, connection, "connection")
        connect = replace(
            connect,
            domain=connect.domain or os.environ.get("OPEN_SANDBOX_DOMAIN") or "localhost:8080",
            api_key=os.environ.get("OPEN_SANDBOX_API_KEY", "") if connect.api_key is None else connect.api_key,
        )
        whose = check.block(OpenSandboxAttributionConfig, attribution, "attribution")
        self._attributed: dict[str, str] = {}
        if whose.enabled:
            known = resolve_attribution(whose.team, whose.user, whose.workload)
            whose = replace(whose, **known, run=resolve_run_id(whose.run))
            self._attributed = {**known, "run": str(whose.run)}
        self._storage = check.block(OpenSandboxSharedStorageConfig, shared_storage, "shared_storage")
        self._requirements = check.block(
            OpenSandboxRuntimeRequirementsConfig, runtime_requirements, "runtime_requirements"
        )
        self._networking = check.block(OpenSandboxNetworkingConfig, networking, "networking")
        operate = check.block(OpenSandboxOperationsConfig, operations, "operations")
        self._background_exec = operate.background_exec
        self._sessions: WeakKeyDictionary[OpenSandboxPtySession, str] = WeakKeyDictionary()
        super().__init__(
            {
                "connection": check.plain(connect),
                "create": check.plain(check.block(OpenSandboxCreateConfig, create, "create")),
                "probe": check.plain(check.block(OpenSandboxProbeConfig, probe, "probe")),
                "operations": check.plain(operate),
                "attribution": check.plain(whose),
                "networking": check.plain(self._networking),
            }
        )

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a sandbox, ready for commands and with the files of the spec.

        Without ``ttl_s`` it ends itself after 600 s. Values of ``env`` and ``metadata`` that are no text become it. Raises OpenSandboxCreateError, or a subclass for a sandbox that was
        late or failed its readiness check; TypeError or ValueError for a provider option that makes no sense. When it
        fails, or is cancelled, nothing is left.
        """
        _check_options(spec.provider_options)
        log_attribution_once(self._attributed)
        try:
            return await super().create(_in_text(spec))
        except SandboxCreateError as error:
            kind = str(getattr(error, "kind", ""))
            known = _BY_KIND.get(kind)
            if known is None or isinstance(error, known):
                raise
            named = known(str(error))
            named.kind = kind  # type: ignore[attr-defined]
            raise named from None

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> OpenSandboxPtySession:
        """Open a session inside the sandbox. Raises ValueError for a user given by number."""
        session = await native_pty.create(self._raw(handle), spec, of_sandbox(owned=True))
        self._sessions[session] = handle.sandbox_id
        return session

    async def attach_pty(
        self, handle: SandboxHandle, session_id: str, *, takeover: bool = True, since: int | None = None
    ) -> OpenSandboxPtySession:
        """Attach to a session by its id, from any process that is connected to the sandbox.

        ``takeover`` evicts the holder; without it a held session refuses with SandboxPtyError. A session that has ended
        is refused too: the daemon would run its command again. ``since`` is the byte offset from which retained output
        is read first; 0, and ``None``, is all of it. With ``takeover`` an attachment of this provider is detached first, so
        that its user can reattach it.
        """
        raw = self._raw(handle)
        # The library does so too. An object of this side is asked first, so that it knows what it is.
        for mine, of in [*self._sessions.items()] if takeover else ():
            if of == handle.sandbox_id and mine.session_id == session_id and not mine.closed:
                with contextlib.suppress(SandboxPtyError):  # it has just ended
                    await mine.detach()
        session = await native_pty.attach(raw, session_id, takeover, since, of_sandbox(owned=False))
        self._sessions[session] = handle.sandbox_id
        return session

    def shared_volume_metadata(self) -> dict[str, str]:
        """The metadata that a sandbox with shared storage needs. NotImplementedError when none is configured."""
        self._shared_folder()
        return dict(self._storage.metadata)

    def shared_volume_options(self, source: str | None, target: str, *, read_only: bool = False) -> dict[str, Any]:
        """The provider options that mount ``source`` (``None``: all of the storage) at ``target``.

        Raises ValueError for a source that is not a safe relative path or a target that is not an absolute one.
        """
        folder = self._shared_folder()
        if source is not None and not _is_inside(source):
            raise ValueError(f"A shared volume's source must be a safe project-relative path, got {source!r}")
        if not target.startswith("/") or ".." in target.split("/") or "\0" in target:
            raise ValueError(f"A shared volume's target must be an absolute path without '..', got {target!r}")
        digest = hashlib.sha256(f"{source}:{target}".encode()).hexdigest()[:16]
        volume: dict[str, Any] = {"name": f"shared-{digest}", "host": {"path": folder}}
        if source is not None:
            volume["subPath"] = source
        return {"volumes": [{**volume, "mountPath": target, "readOnly": read_only}]}

    def _shared_folder(self) -> str:
        if not self._storage.host_path:
            raise NotImplementedError("shared_storage.host_path is not configured")
        if not posixpath.isabs(self._storage.host_path):
            raise ValueError(f"shared_storage.host_path must be absolute, got {self._storage.host_path!r}")
        return self._storage.host_path

    def validate_runtime_requirements(self, cap_add: Sequence[str], shm_size: int | None) -> dict[str, str]:
        """The metadata that asks for capabilities, and for bytes of ``/dev/shm``.

        Raises NotImplementedError for what the configuration has no probe or key for, ValueError for a size that is not
        a positive number of bytes.
        """
        asked: dict[str, str] = {}
        for capability in cap_add:
            if not self._requirements.capability_probes.get(capability, "").strip():
                raise NotImplementedError(
                    f"runtime_requirements.capability_probes has no probe for the capability {capability!r}"
                )
            asked.update(self._requirements.capability_metadata.get(capability, {}))
        if shm_size is not None:
            given: Any = shm_size
            if isinstance(given, bool) or not isinstance(given, int) or given <= 0:
                raise ValueError(f"shm_size must be a positive number of bytes, got {shm_size!r}")
            if not self._requirements.shm_size_metadata_key:
                raise NotImplementedError("runtime_requirements.shm_size_metadata_key is not configured")
            asked[self._requirements.shm_size_metadata_key] = str(shm_size)
        return asked

    async def configure_runtime(self, handle: SandboxHandle, cap_add: Sequence[str], shm_size: int | None) -> None:
        """Check in a running sandbox that the capabilities and the size are there; RuntimeError when not."""
        self.validate_runtime_requirements(cap_add, shm_size)
        for capability in cap_add:
            probe = self._requirements.capability_probes[capability]
            result = await self.exec(handle, probe, timeout_s=_CHECK_TIMEOUT_S, user="root")
            if result.return_code != 0 or result.error_type:
                raise RuntimeError(
                    f"sandbox {handle.sandbox_id} cannot satisfy the capability {capability!r}: its probe ended with "
                    f"code {result.return_code}"
                )
        if shm_size is not None:
            result = await self.exec(handle, "stat -f -c '%b %S' /dev/shm", timeout_s=_CHECK_TIMEOUT_S)
            try:
                blocks, block = (int(number) for number in (result.stdout or "").split())
                wanted = -(-shm_size // block)
            except (ValueError, ZeroDivisionError):
                raise RuntimeError(
                    f"sandbox {handle.sandbox_id} cannot satisfy shm_size={shm_size}: the size of /dev/shm is not known"
                ) from None
            if blocks < wanted:
                raise RuntimeError(
                    f"sandbox {handle.sandbox_id} cannot satisfy shm_size={shm_size}: /dev/shm has {blocks * block} bytes"
                )


def _is_inside(source: str) -> bool:
    """Whether a path stays below the folder that it is relative to."""
    parts = source.split("/")
    return (
        bool(source.strip("/")) and not source.startswith("/") and ".." not in parts and not set(source) & {"\\", "\0"}
    )
