"""The providers of this package as backends under test, and others by what their users configure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.providers.registry import create_provider, get_provider_class
from nemo_gym_sandbox.testing._backend import Backend, difference_names

if TYPE_CHECKING:
    from collections.abc import Mapping


def backend(
    config: Mapping[str, Any], *, spec: SandboxSpec | None = None, name: str = "", **differences: Any
) -> Backend:
    """A backend from ``{provider: configuration}``, as :class:`~nemo_gym_sandbox.AsyncSandbox` takes it.

    What the providers of this package do differently is known; capabilities that another provider's class does not have
    count as declared. ``differences`` are further fields of :class:`Backend`.
    """
    ((provider, arguments),) = config.items()
    declared = _declared(provider, arguments or {})
    return Backend(
        name or provider, lambda: create_provider(config), spec or SandboxSpec(), **{**declared, **differences}
    )


def _declared(provider: str, arguments: Any) -> dict[str, Any]:
    if provider == "local":
        return {"no_users": True}
    if provider == "docker":
        from nemo_gym_sandbox.providers._options import block
        from nemo_gym_sandbox.providers.docker import DockerExecConfig

        mode = block(DockerExecConfig, arguments.get("exec"), "exec").mode
        # Each command is several requests to the engine, of which it serves few at a time.
        return {"no_terminals": True, "max_in_flight": 20, "slow": 3} if mode == "engine" else {}
    if provider == "opensandbox":
        from nemo_gym_sandbox.providers._options import block
        from nemo_gym_sandbox.providers.opensandbox import OpenSandboxOperationsConfig

        polled = block(OpenSandboxOperationsConfig, arguments.get("operations"), "operations").background_exec
        told = {"merged_output": True, "no_streaming": True} if polled else {"as_lines": True, "no_back_pressure": True}
        lacking = ("no_stdin", "no_home", "late_users", "no_terminal_signal_codes", "no_tree_kill", "no_ttl")
        return {**told, **dict.fromkeys(lacking, True)}
    cls: Any = get_provider_class(provider)
    missing = {
        "no_stdin": "exec_stream",
        "no_streaming": "exec_stream",
        "no_pause": "pause",
        "no_connect": "connect",
        "no_endpoints": "endpoint",
        "no_terminals": "create_pty",
        "no_attach": "attach_pty",
    }
    return {difference: True for difference, method in missing.items() if not hasattr(cls, method)}


def with_differences(backend: Backend, names: list[str]) -> Backend:
    """The backend with more differences. Raises ValueError for a name that is none."""
    known = difference_names()
    for name in names:
        if name not in known:
            from nemo_gym_sandbox.providers._options import nearest

            raise ValueError(f"there is no difference {name!r}; there are {', '.join(known)}{nearest(name, known)}")
    return dataclasses.replace(backend, **dict.fromkeys(names, True))
