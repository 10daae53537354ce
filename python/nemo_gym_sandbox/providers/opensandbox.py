"""Where :class:`OpenSandboxProvider` belongs; not in this version, so it cannot be made."""

from __future__ import annotations

from nemo_gym_sandbox.providers._planned import OpenSandboxProvider

__all__ = ["OpenSandboxProvider"]
