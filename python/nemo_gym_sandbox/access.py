"""Models for handing a running sandbox to another component. Needs pydantic (extra ``access``)."""

from __future__ import annotations

from typing import ClassVar, Literal

try:
    from pydantic import BaseModel, ConfigDict, JsonValue
except ImportError as _error:
    raise ImportError("nemo_gym_sandbox.access needs pydantic: pip install 'nemo-gym-sandbox[access]'") from _error

__all__ = ["DirectSandboxConnection", "SandboxAccess"]


class DirectSandboxConnection(BaseModel):
    """How to connect to a sandbox with the provider of a configuration block.

    ``descriptor`` is what ``AsyncSandbox.serialize()`` gave.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: dict[str, JsonValue]


class SandboxAccess(BaseModel):
    """A sandbox and the directory to work in."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    connection: DirectSandboxConnection
    workdir: str
