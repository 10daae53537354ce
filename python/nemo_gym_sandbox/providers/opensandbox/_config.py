"""The configuration blocks of the OpenSandbox provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nemo_gym_sandbox.providers import _options as check

_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, kw_only=True)
class OpenSandboxConnectionConfig:
    """Where the server is and how it is spoken to."""

    domain: str | None = None
    """``host[:port][/prefix]`` or a URL; None is ``OPEN_SANDBOX_DOMAIN``, else ``localhost:8080``."""
    api_key: str | None = field(default=None, repr=False)
    """None is ``OPEN_SANDBOX_API_KEY``. It goes to the server only."""
    protocol: Literal["http", "https"] | None = None
    """None is the domain's scheme, else ``http``."""
    request_timeout_s: float | None = None
    """Of a request, and of the silence within its answer; None is 30."""
    use_server_proxy: bool = False
    """Reach sandboxes through the server."""
    disable_connection_pooling: bool = False
    """A connection for each request; with ``httpx``."""
    keepalive_expiry_s: float = 3.0
    """How long an unused connection is kept; with ``httpx``."""
    max_keepalive_connections: int = 20
    """How many unused connections are kept; with ``httpx``."""
    max_connections: int = 100
    """How many there are; with ``httpx``."""
    connect_retries: int = 2
    """Of a connection that cannot be made; with ``httpx``."""
    transport_backend: Literal["aiohttp", "httpx"] = "aiohttp"
    """Which limits apply; neither library is used."""
    tls_verify: bool = False
    """Check the server's certificate."""

    def __post_init__(self) -> None:
        check.optional_number("connection.request_timeout_s", self.request_timeout_s, above=0)
        check.number("connection.keepalive_expiry_s", self.keepalive_expiry_s, at_least=0)
        check.number("connection.max_keepalive_connections", self.max_keepalive_connections, at_least=0, whole=True)
        check.number("connection.max_connections", self.max_connections, at_least=1, whole=True)
        check.number("connection.connect_retries", self.connect_retries, at_least=0, whole=True)
        check.one_of("connection.transport_backend", self.transport_backend, ("aiohttp", "httpx"))


@dataclass(frozen=True, kw_only=True)
class OpenSandboxCreateConfig:
    """How sandboxes are made."""

    request_timeout_s: float | None = None
    """Of the request that makes one; None is the connection's."""
    timeout_s: float | None = None
    """Of one attempt with all that belongs to it; None is the connection's request timeout."""
    retries: int = 2
    """Further attempts after failures that may pass."""
    retry_delay_s: float = 5
    """The longest first wait between attempts; it doubles."""
    retry_max_delay_s: float = 60
    """The longest wait between attempts."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = "IfNotPresent"
    """None leaves it to the server."""
    skip_health_check: bool = False
    """Do not ask the sandbox's daemon whether it is ready."""
    connect_attempt_timeout_s: float = 30
    """Of one attempt to connect."""
    connect_poll_s: float = 2
    """Between looks at a sandbox that is changing its state."""
    renew_interval_s: float | None = None
    """How often the sandbox's life is prolonged to its ``ttl_s`` while this process holds it; None is never."""

    def __post_init__(self) -> None:
        check.optional_number("create.request_timeout_s", self.request_timeout_s, above=0)
        check.optional_number("create.timeout_s", self.timeout_s, above=0)
        check.number("create.retries", self.retries, at_least=0, whole=True)
        check.number("create.retry_delay_s", self.retry_delay_s, at_least=0)
        check.number("create.retry_max_delay_s", self.retry_max_delay_s, at_least=0)
        if self.image_pull_policy is not None:
            check.one_of("create.image_pull_policy", self.image_pull_policy, _PULL_POLICIES)
        check.number("create.connect_attempt_timeout_s", self.connect_attempt_timeout_s, above=0)
        check.number("create.connect_poll_s", self.connect_poll_s, above=0)
        check.optional_number("create.renew_interval_s", self.renew_interval_s, above=0)


@dataclass(frozen=True, kw_only=True)
class OpenSandboxProbeConfig:
    """When a new sandbox counts as ready."""

    command: str | None = "printf nemo-gym-sandbox-ready"
    """Has to succeed; None skips the probe."""
    expected_stdout: str | None = "nemo-gym-sandbox-ready"
    """Has to be in the probe's output; None takes any."""
    timeout_s: float | None = 30
    """Per try."""
    deadline_s: float | None = None
    """Tries again until then; None is ``timeout_s``."""
    stable_count: int = 1
    """Successes in a row that are needed."""
    stable_delay_s: float = 0
    """Between them."""
    user: str | int | None = None
    """Whom it runs as."""

    def __post_init__(self) -> None:
        if self.command is not None:
            check.optional_number("probe.timeout_s", self.timeout_s, above=0)
        check.optional_number("probe.deadline_s", self.deadline_s, above=0)
        check.number("probe.stable_count", self.stable_count, at_least=1, whole=True)
        check.number("probe.stable_delay_s", self.stable_delay_s, at_least=0)


@dataclass(frozen=True, kw_only=True)
class OpenSandboxOperationsConfig:
    """How requests about a running sandbox are made."""

    retries: int = 3
    """Further attempts after failures that may pass."""
    retry_delay_s: float = 1
    """The longest first wait between attempts; it doubles."""
    retry_max_delay_s: float = 15
    """The longest wait between attempts."""
    command_retries: int = 0
    """Further attempts of a command whose fate is not known: it may run twice."""
    close_timeout_s: float | None = 30
    """Of one request to end a sandbox."""
    pause_resume_timeout_s: float = 600
    """Of a whole pause or resume."""
    background_exec: bool = False
    """Poll for a command's end instead of holding a connection; its two outputs then come as one."""
    background_poll_initial_s: float = 0.25
    """The first wait between polls; it grows by half."""
    background_poll_interval_s: float = 2
    """The longest wait between polls."""
    status_poll_timeout_s: float | None = 10
    """Of one poll; None is the connection's request timeout, else 60."""

    def __post_init__(self) -> None:
        check.number("operations.retries", self.retries, at_least=0, whole=True)
        check.number("operations.retry_delay_s", self.retry_delay_s, at_least=0)
        check.number("operations.retry_max_delay_s", self.retry_max_delay_s, at_least=0)
        check.number("operations.command_retries", self.command_retries, at_least=0, whole=True)
        check.optional_number("operations.close_timeout_s", self.close_timeout_s, above=0)
        check.number("operations.pause_resume_timeout_s", self.pause_resume_timeout_s, above=0)
        check.number("operations.background_poll_initial_s", self.background_poll_initial_s, above=0)
        check.number("operations.background_poll_interval_s", self.background_poll_interval_s, above=0)
        check.optional_number("operations.status_poll_timeout_s", self.status_poll_timeout_s, above=0)


@dataclass(frozen=True, kw_only=True)
class OpenSandboxAttributionConfig:
    """Whose sandboxes these are; what is not given is looked up as :mod:`nemo_gym_sandbox.attribution` does."""

    enabled: bool = True
    """Put it into the metadata of sandboxes."""
    team: str | None = None
    """The team."""
    user: str | None = None
    """The person."""
    workload: str | None = None
    """What the sandboxes are for."""
    run: str | None = None
    """The run; there always is one."""
    key_prefix: str = "nemo-gym.nvidia.com/"
    """A lowercase DNS subdomain, or empty for bare keys."""

    def __post_init__(self) -> None:
        for name in ("team", "user", "workload", "run", "key_prefix"):
            check.optional_text(f"attribution.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class OpenSandboxNetworkingConfig:
    """Connections between sandboxes."""

    enabled: bool = False
    """Whether sandboxes may reach each other."""
    loopback_forwarding: bool = False
    """Whether ports of one may be forwarded to the loopback of another."""
    python_executable: str = "python3"
    """What runs the relay in a sandbox."""
    setup_command: str | None = None
    """Run before the relay."""

    def __post_init__(self) -> None:
        check.text("networking.python_executable", self.python_executable)


@dataclass(frozen=True, kw_only=True)
class OpenSandboxSharedStorageConfig:
    """A folder of the server's hosts that several sandboxes can mount."""

    host_path: str | None = None
    """Where it is; None: there is none."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the sandboxes that mount it need as metadata."""

    def __post_init__(self) -> None:
        check.optional_text("shared_storage.host_path", self.host_path)
        check.text_mapping("shared_storage.metadata", self.metadata)


@dataclass(frozen=True, kw_only=True)
class OpenSandboxRuntimeRequirementsConfig:
    """How a sandbox is asked for capabilities, and shows that it has them."""

    capability_probes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By capability: a command that succeeds where it is there."""
    capability_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, "Mapping[str, str]"])
    """By capability: the metadata that asks for it."""
    shm_size_metadata_key: str | None = None
    """The metadata key that asks for a size of ``/dev/shm``, in bytes."""

    def __post_init__(self) -> None:
        check.text_mapping("runtime_requirements.capability_probes", self.capability_probes)
        given: Any = self.capability_metadata
        if not isinstance(given, Mapping):
            raise ValueError(f"runtime_requirements.capability_metadata must be a mapping, got {given!r}")
        for capability, metadata in self.capability_metadata.items():
            check.text_mapping(f"runtime_requirements.capability_metadata.{capability}", metadata)
        check.optional_text("runtime_requirements.shm_size_metadata_key", self.shm_size_metadata_key)
