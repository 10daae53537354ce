"""Where :class:`ApptainerProvider` belongs; not in this version, so it cannot be made."""

from __future__ import annotations

from nemo_gym_sandbox.providers._planned import ApptainerProvider

__all__ = ["ApptainerProvider"]
