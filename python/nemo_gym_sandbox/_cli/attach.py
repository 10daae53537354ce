"""Attach this terminal to a session of a running sandbox."""

from __future__ import annotations

from nemo_gym_sandbox.shell import attach as main

__all__ = ["main"]
