"""Sandboxes as containers of a Docker engine, over the engine's API; the ``docker`` command is not needed."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nemo_gym_sandbox._core.capabilities import (
    NativeDefaults,
    NativeEndpoints,
    NativePausing,
    NativeReconnection,
    NativeServices,
    NativeSidecars,
    NativeTerminals,
)
from nemo_gym_sandbox.providers import _options as check
from nemo_gym_sandbox.providers.base import SandboxCreateError, SandboxCreateVerificationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = [
    "DockerConnectionConfig",
    "DockerCreateConfig",
    "DockerCreateError",
    "DockerCreateVerificationError",
    "DockerExecConfig",
    "DockerProbeConfig",
    "DockerProvider",
]


class DockerCreateError(SandboxCreateError):
    """Raised when a container cannot be created or connected to."""


class DockerCreateVerificationError(DockerCreateError, SandboxCreateVerificationError):
    """Raised when a new container fails its readiness check."""


@dataclass(frozen=True, kw_only=True)
class DockerCreateConfig:
    """How containers are made."""

    keepalive_shell: str = "/bin/sh"
    """Runs ``keepalive_cmd`` where no agent runs."""
    keepalive_cmd: str = "while :; do sleep 3600; done"
    """Keeps a container alive where no agent runs."""
    start_timeout_s: float | None = 600
    """Bounds everything from the pull to the first answer; None is no limit."""
    use_init: bool = True
    """A first process that reaps; the agent is one."""
    network: str | None = None
    """The network's name or mode; None is the engine's default."""
    read_only: bool = False
    """Makes the root file system read-only."""
    cap_drop: Sequence[str] = ()
    """Capabilities taken away."""
    security_opt: Sequence[str] = ()
    """Security options, handed to the engine as they are."""
    pids_limit: int | None = None
    """Processes and threads; None is the engine's default."""
    extra_run_args: Sequence[str] = ()
    """Flags as for ``docker run``; those that are not supported are refused by name."""
    apply_resource_limits: bool = True
    """False makes the spec's cpu and memory advice."""
    publish_host: str = "127.0.0.1"
    """The address on which declared ports are published."""
    orphan_timeout_s: float = 60
    """How long a sandbox outlives its last client; 0 is for ever."""
    handover_timeout_s: float = 3600
    """The same once the sandbox was serialized or taken up by another client; 0 is for ever."""
    agent_transport: Literal["auto", "socket", "stream"] = "auto"
    """How the agent in the container is reached: a mounted socket, an exec's stream, or whichever works."""
    platform: str | None = None
    """``os/arch[/variant]`` of the image; None is the engine's own."""
    pull_policy: Literal["missing", "always", "never"] = "missing"
    """When images are pulled."""

    def __post_init__(self) -> None:
        check.text("create.keepalive_shell", self.keepalive_shell)
        check.text("create.keepalive_cmd", self.keepalive_cmd)
        check.optional_number("create.start_timeout_s", self.start_timeout_s, above=0)
        check.optional_number("create.pids_limit", self.pids_limit, above=0, whole=True)
        check.number("create.orphan_timeout_s", self.orphan_timeout_s, at_least=0)
        check.number("create.handover_timeout_s", self.handover_timeout_s, at_least=0)
        for name in ("use_init", "read_only", "apply_resource_limits"):
            check.switch(f"create.{name}", getattr(self, name))
        check.optional_text("create.network", self.network)
        check.optional_text("create.platform", self.platform)
        check.texts("create.cap_drop", self.cap_drop)
        check.texts("create.security_opt", self.security_opt)
        check.texts("create.extra_run_args", self.extra_run_args)
        check.one_of("create.agent_transport", self.agent_transport, ("auto", "socket", "stream"))
        check.one_of("create.pull_policy", self.pull_policy, ("missing", "always", "never"))
        check.text("create.publish_host", self.publish_host)
        try:
            ipaddress.ip_address(self.publish_host)
        except ValueError:
            raise ValueError(f"create.publish_host must be an IP address, got {self.publish_host!r}") from None


@dataclass(frozen=True, kw_only=True)
class DockerExecConfig:
    """How commands are run."""

    default_timeout_s: float | None = 180
    """Bounds commands that give no timeout; None is no limit."""
    extra_exec_args: Sequence[str] = ()
    """Flags as for ``docker exec``; they force mode ``engine``."""
    concurrency: int | None = None
    """Commands at once; None is 32 in mode ``engine`` and no limit with the agent."""
    exec_shell: str | None = None
    """What runs commands; None is bash where the container has it, else sh."""
    mode: Literal["auto", "agent", "engine"] = "auto"
    """Through our agent in the container, the engine's own exec, or the first that works."""
    max_output_bytes: int = 268435456
    """How much of each channel is kept, head and tail; 0 is all."""
    kill_grace_s: float = 0.5
    """Between the request to end and the kill, after a timeout or a cancellation."""

    def __post_init__(self) -> None:
        check.optional_number("exec.default_timeout_s", self.default_timeout_s, above=0)
        check.texts("exec.extra_exec_args", self.extra_exec_args)
        check.optional_number("exec.concurrency", self.concurrency, at_least=1, whole=True)
        if self.exec_shell is not None:
            check.text("exec.exec_shell", self.exec_shell)
        check.one_of("exec.mode", self.mode, ("auto", "agent", "engine"))
        check.number("exec.max_output_bytes", self.max_output_bytes, at_least=0, whole=True)
        check.number("exec.kill_grace_s", self.kill_grace_s, at_least=0)
        if self.extra_exec_args and self.mode == "agent":
            raise ValueError("exec.extra_exec_args are flags of the engine's exec: they exclude exec.mode 'agent'")


@dataclass(frozen=True, kw_only=True)
class DockerProbeConfig:
    """When a new container counts as ready."""

    command: str | None = "printf docker-sandbox-ready"
    """Has to succeed; None skips the probe."""
    expected_stdout: str | None = "docker-sandbox-ready"
    """Has to be in the probe's output; None takes any."""
    timeout_s: float | None = 30
    """Per try."""
    deadline_s: float | None = None
    """Tries again until then; None makes the first failure final."""
    stable_count: int = 1
    """Successes in a row that are needed."""
    stable_delay_s: float = 0
    """Between them."""

    def __post_init__(self) -> None:
        check.optional_text("probe.command", self.command)
        check.optional_text("probe.expected_stdout", self.expected_stdout)
        if self.command is not None:
            check.optional_number("probe.timeout_s", self.timeout_s, above=0)
        check.optional_number("probe.deadline_s", self.deadline_s, above=0)
        check.number("probe.stable_count", self.stable_count, at_least=1, whole=True)
        check.number("probe.stable_delay_s", self.stable_delay_s, at_least=0)


@dataclass(frozen=True, kw_only=True)
class DockerConnectionConfig:
    """Where the engine is. What is left open is looked up as the docker command does: environment, then context."""

    host: str | None = None
    """``unix://``, ``tcp://`` or ``ssh://``; else ``DOCKER_HOST``."""
    context: str | None = None
    """A context's name; else ``DOCKER_CONTEXT``, else the current one."""
    tls_verify: bool | None = None
    """Else ``DOCKER_TLS_VERIFY``."""
    cert_path: str | None = None
    """Else ``DOCKER_CERT_PATH``."""
    api_version: str | None = None
    """Else ``DOCKER_API_VERSION``, else agreed upon with the engine."""
    config_dir: str | None = None
    """Else ``DOCKER_CONFIG``, else ``~/.docker``."""

    def __post_init__(self) -> None:
        for name in ("host", "context", "cert_path", "api_version", "config_dir"):
            check.optional_text(f"connection.{name}", getattr(self, name))
        if self.tls_verify is not None:
            check.switch("connection.tls_verify", self.tls_verify)


class DockerProvider(
    NativeReconnection, NativeDefaults, NativeEndpoints, NativePausing, NativeTerminals, NativeServices, NativeSidecars
):
    """Runs each sandbox as a container.

    Each block is a mapping of its keys or its dataclass. Raises TypeError for a key that does not exist, ValueError for
    a value that makes no sense.
    """

    name: ClassVar[str] = "docker"
    writes_spec_files: ClassVar[bool] = True
    keeps_file_modes: ClassVar[bool] = True
    create_error: ClassVar[type[SandboxCreateError]] = DockerCreateError
    verification_error: ClassVar[type[SandboxCreateVerificationError]] = DockerCreateVerificationError

    @check.named_keywords
    def __init__(
        self,
        create: Mapping[str, Any] | DockerCreateConfig | None = None,
        exec: Mapping[str, Any] | DockerExecConfig | None = None,  # noqa: A002 - the block's name
        probe: Mapping[str, Any] | DockerProbeConfig | None = None,
        connection: Mapping[str, Any] | DockerConnectionConfig | None = None,
    ) -> None:
        super().__init__(
            {
                "create": check.plain(check.block(DockerCreateConfig, create, "create")),
                "exec": check.plain(check.block(DockerExecConfig, exec, "exec")),
                "probe": check.plain(check.block(DockerProbeConfig, probe, "probe")),
                "connection": check.plain(check.block(DockerConnectionConfig, connection, "connection")),
            }
        )
