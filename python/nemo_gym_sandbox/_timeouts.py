"""Timeouts of commands, as callers give them."""

from __future__ import annotations

from typing import Any

_FOREVER_S = 1e9  # as good as no limit, and no integer too large for a float


def checked(timeout_s: Any) -> int | float | None:
    """Seconds, or None where nothing was said. TypeError for what is no number, ValueError for NaN and what is not positive."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise TypeError(f"timeout_s must be a number of seconds or None, not {type(timeout_s).__name__}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    return timeout_s


def waitable(seconds: float | None) -> float | None:
    """Seconds as event loops can wait them; None is for ever."""
    return None if seconds is None or seconds > _FOREVER_S else seconds
