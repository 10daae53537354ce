"""``sandbox.sidecar(name)``: commands and files of a sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nemo_gym_sandbox._paths import inside

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable

    from nemo_gym_sandbox._lifecycle import Lifecycle
    from nemo_gym_sandbox.providers.base import SandboxExecResult, SupportsSandboxSidecars


class SandboxSidecar:
    """A sidecar declared in ``SandboxSpec.sidecars``."""

    def __init__(self, life: Lifecycle, name: str) -> None:
        self._life = life
        self.name = name

    async def exec(
        self,
        *argv: str,
        timeout_s: int | float | None = 180,
        on_stdout: Callable[[str], Awaitable[None] | None] | None = None,
    ) -> SandboxExecResult:
        """Run argv without a shell and wait for its exit.

        ``on_stdout`` receives text as it arrives, so that a long-running service can be followed.
        """
        if not argv:
            raise ValueError("a sidecar command needs at least the name of a program")
        return await self._provider().sidecar_exec(
            self._life.handle(), self.name, list(argv), timeout_s=timeout_s, on_stdout=on_stdout
        )

    async def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copy one file of the sidecar to the local file system."""
        await self._provider().download_sidecar_file(self._life.handle(), self.name, inside(remote), Path(local))

    def _provider(self) -> SupportsSandboxSidecars:
        provider: Any = self._life.provider
        return cast("SupportsSandboxSidecars", provider)
