"""Sandboxes on this machine: a directory each, under bubblewrap where that works."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nemo_gym_sandbox._core.capabilities import (
    NativeDefaults,
    NativeEndpoints,
    NativePausing,
    NativeReconnection,
    NativeServices,
    NativeTerminals,
)
from nemo_gym_sandbox.providers import _options as check

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["LocalProvider"]


class LocalProvider(
    NativeReconnection, NativeDefaults, NativeEndpoints, NativePausing, NativeTerminals, NativeServices
):
    """Runs commands on this machine.

    ``workspace_root`` holds the directories of sandboxes whose spec names none; the system's temporary directory
    otherwise. ``concurrency`` bounds the commands at once, None is no limit. ``isolation`` is ``auto`` (bubblewrap
    where it works), ``bwrap`` or ``none``, and comes from ``NEMO_GYM_SANDBOX_LOCAL_ISOLATION`` when not given;
    ``network="none"`` needs isolation. ``inherit_env`` names variables of this process that commands see too.
    ``max_output_bytes`` of each channel are kept, head and tail, 0 being all. ``kill_grace_s`` is between the request
    to end and the kill. A sandbox outlives its last client by ``orphan_timeout_s``, or ``handover_timeout_s`` once it
    was serialized; 0 is for ever.

    Raises TypeError for an argument that does not exist, ValueError for a value that makes no sense.
    """

    name: ClassVar[str] = "local"
    writes_spec_files: ClassVar[bool] = True
    keeps_file_modes: ClassVar[bool] = True

    @check.named_keywords
    def __init__(
        self,
        workspace_root: str | os.PathLike[str] | None = None,
        shell: str = "/bin/bash",
        default_timeout_s: int | float = 180,
        concurrency: int | None = None,
        *,
        isolation: Literal["auto", "bwrap", "none"] | None = None,
        network: Literal["shared", "none"] = "shared",
        inherit_env: Sequence[str] = (),
        max_output_bytes: int = 268435456,
        kill_grace_s: float = 0.5,
        orphan_timeout_s: float = 60,
        handover_timeout_s: float = 3600,
    ) -> None:
        check.text("shell", shell)
        check.number("default_timeout_s", default_timeout_s, above=0)
        check.optional_number("concurrency", concurrency, at_least=1, whole=True)
        if isolation is not None:
            check.one_of("isolation", isolation, ("auto", "bwrap", "none"))
        check.one_of("network", network, ("shared", "none"))
        check.texts("inherit_env", inherit_env)
        check.number("max_output_bytes", max_output_bytes, at_least=0, whole=True)
        check.number("kill_grace_s", kill_grace_s, at_least=0)
        check.number("orphan_timeout_s", orphan_timeout_s, at_least=0)
        check.number("handover_timeout_s", handover_timeout_s, at_least=0)
        config: dict[str, Any] = {
            "shell": shell,
            "default_timeout_s": default_timeout_s,
            "network": network,
            "inherit_env": list(inherit_env),
            "max_output_bytes": max_output_bytes,
            "kill_grace_s": kill_grace_s,
            "orphan_timeout_s": orphan_timeout_s,
            "handover_timeout_s": handover_timeout_s,
        }
        if workspace_root is not None:
            config["workspace_root"] = os.path.abspath(workspace_root)
        if concurrency is not None:
            config["concurrency"] = concurrency
        if isolation is not None:
            config["isolation"] = isolation
        super().__init__(config)
