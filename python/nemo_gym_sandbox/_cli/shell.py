"""Open a shell in a new sandbox, from this terminal."""

from __future__ import annotations

from nemo_gym_sandbox.shell import main

__all__ = ["main"]
