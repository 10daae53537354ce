"""Spans and metrics of sandboxes through OpenTelemetry, off unless asked for.

Two ways to turn it on: call :func:`enable`, or set ``NEMO_GYM_SANDBOX_TELEMETRY=1`` before the first sandbox is made.
Both need the OpenTelemetry API (extra ``otel``) and record to whatever SDK the application set up. While it is off, one
comparison with ``None`` is all that an operation pays, and OpenTelemetry is not imported.

Spans: ``gym.sandbox.start``, ``gym.sandbox.exec``, ``gym.sandbox.stop``, with ``nemo.gym.sandbox.provider`` and
``nemo.gym.sandbox.id``; an exec adds ``nemo.gym.sandbox.return_code`` and ``.error_type``. Metrics, by provider:
``gym.sandbox.active``, ``gym.sandbox.startup_duration_ms``, ``gym.sandbox.exec_duration_ms`` and
``gym.sandbox.create_retry_total``. Commands, environments, paths and error texts are never recorded.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nemo_gym_sandbox._recorder import Recorder

__all__ = ["disable", "enable", "enabled", "record_create_retry", "traceparent"]

LOGGER = logging.getLogger(__name__)

ENV_VARIABLE: Final = "NEMO_GYM_SANDBOX_TELEMETRY"

_recorder: Recorder | None = None
_asked: bool | None = None  # None: the environment has not been looked at yet


def enable(*, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Record from now on, to the given OpenTelemetry providers or the global ones.

    Raises RuntimeError when the OpenTelemetry API is not installed.
    """
    from nemo_gym_sandbox._recorder import Recorder

    global _recorder, _asked
    _recorder, _asked = Recorder(tracer_provider, meter_provider), True


def disable() -> None:
    """Stop recording. Sandboxes that were counted as active are counted out when they stop."""
    global _recorder, _asked
    _recorder, _asked = None, False


def enabled() -> bool:
    """Whether operations are recorded."""
    return recorder() is not None


def recorder() -> Recorder | None:
    """What records now, or None. The environment variable is looked at once, at the first call."""
    global _asked
    if _asked is None:
        _asked = os.environ.get(ENV_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
        if _asked:
            try:
                enable()
            except RuntimeError as error:
                LOGGER.warning("%s is set, but %s", ENV_VARIABLE, error)
    return _recorder


def record_create_retry(provider: str) -> None:
    """Count one repeated attempt to create a sandbox; for providers that retry."""
    current = recorder()
    if current is not None:
        current.create_retry(provider)


def traceparent() -> str | None:
    """The current span in W3C form, for backends that carry it on; None when there is none or nothing records."""
    current = recorder()
    if current is None:
        return None
    context = current.trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
