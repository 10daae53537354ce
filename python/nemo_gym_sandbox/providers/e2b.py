"""Where :class:`E2BProvider` belongs; not in this version, so it cannot be made."""

from __future__ import annotations

from nemo_gym_sandbox.providers._planned import E2BProvider

__all__ = ["E2BProvider"]
