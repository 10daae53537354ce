"""Sandboxes for agents: create one, run commands in it, stop it, whatever the backend.

    async with AsyncSandbox({"docker": {}}, SandboxSpec(image="python:3.12-slim")) as sandbox:
        await sandbox.start()
        result = await sandbox.exec("python -c 'print(6 * 7)'")

:class:`Sandbox` is the same for code without an event loop.
"""

import logging as _logging
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from nemo_gym_sandbox._version import __version__
from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import (
    ConnectableProvider,
    ExecResult,
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxPtyError,
    SandboxPtySession,
    SandboxPtySpec,
    SandboxResources,
    SandboxSidecarSpec,
    SandboxSpec,
    SandboxStatus,
    SupportsSandboxDefaults,
    SupportsSandboxDisconnect,
    SupportsSandboxEndpoint,
    SupportsSandboxExecStream,
    SupportsSandboxNetwork,
    SupportsSandboxPauseResume,
    SupportsSandboxPortForwarding,
    SupportsSandboxPty,
    SupportsSandboxPtyAttach,
    SupportsSandboxRuntimeRequirements,
    SupportsSandboxSharedStorage,
    SupportsSandboxSidecars,
    SupportsSandboxSnapshot,
)
from nemo_gym_sandbox.providers.registry import (
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
)

if _TYPE_CHECKING:
    from nemo_gym_sandbox._install import install, uninstall
    from nemo_gym_sandbox.api import Sandbox, SandboxPty, SandboxSidecar
    from nemo_gym_sandbox.config import resolve_provider_config, resolve_provider_metadata
    from nemo_gym_sandbox.utils import rewrite_image

__all__ = [
    "AsyncSandbox",
    "ConnectableProvider",
    "ExecResult",
    "Sandbox",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxEndpoint",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxPty",
    "SandboxPtyError",
    "SandboxPtySession",
    "SandboxPtySpec",
    "SandboxResources",
    "SandboxSidecar",
    "SandboxSidecarSpec",
    "SandboxSpec",
    "SandboxStatus",
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
    "__version__",
    "create_provider",
    "get_provider_class",
    "install",
    "list_providers",
    "register_provider",
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
    "uninstall",
]

_logging.getLogger(__name__).addHandler(_logging.NullHandler())

_LATER = {
    "Sandbox": "api",
    "SandboxPty": "api",
    "SandboxSidecar": "api",
    "install": "_install",
    "resolve_provider_config": "config",
    "resolve_provider_metadata": "config",
    "rewrite_image": "utils",
    "uninstall": "_install",
    "AsyncSandboxCompose": "adapters.docker_compose",  # absent, which its module says
}


def __getattr__(name: str) -> _Any:
    """Load what not every user needs when it is first asked for: importing this package has to be quick."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
