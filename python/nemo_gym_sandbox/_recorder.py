"""Records spans and metrics through OpenTelemetry; loaded only when telemetry is on."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nemo_gym_sandbox.providers.base import SandboxExecResult

LOGGER = logging.getLogger(__name__)

_SCOPE = "nemo_gym_sandbox"
_PROVIDER = "nemo.gym.sandbox.provider"
_BUCKETS_MS = (250, 500, 1000, 2000, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000)


def _quietly(record: Callable[[], object]) -> None:
    """Recording must never fail what is recorded."""
    try:
        record()
    except Exception:
        LOGGER.debug("could not record telemetry", exc_info=True)


class Recorder:
    """The instruments, made once from the application's providers."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics, trace  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        except ImportError as error:
            raise RuntimeError(
                "sandbox telemetry needs the OpenTelemetry API: pip install 'nemo-gym-sandbox[otel]'"
            ) from error
        self.trace: Any = trace
        self._tracer: Any = self.trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        api: Any = metrics
        meter: Any = api.get_meter(_SCOPE, meter_provider=meter_provider)
        self._active: Any = meter.create_up_down_counter("gym.sandbox.active", unit="{sandbox}")
        self._durations: dict[str, Any] = {
            "start": self._histogram(meter, "gym.sandbox.startup_duration_ms"),
            "exec": self._histogram(meter, "gym.sandbox.exec_duration_ms"),
        }
        self._retries: Any = meter.create_counter("gym.sandbox.create_retry_total")

    @staticmethod
    def _histogram(meter: Any, name: str) -> Any:
        try:
            return meter.create_histogram(name, unit="ms", explicit_bucket_boundaries_advisory=_BUCKETS_MS)
        except TypeError:  # an API older than 1.30 has no advice about buckets
            return meter.create_histogram(name, unit="ms")

    def span(self, operation: str, provider: str, sandbox_id: str | None) -> Span:
        """A span of one operation (``start``, ``exec`` or ``stop``), to be used with ``with``."""
        return Span(self, self._tracer, operation, provider, sandbox_id)

    def active(self, provider: str, change: int) -> None:
        """Count a sandbox in (+1) or out (-1)."""
        _quietly(lambda: self._active.add(change, {_PROVIDER: provider}))

    def create_retry(self, provider: str) -> None:
        """Count one repeated attempt to create a sandbox."""
        _quietly(lambda: self._retries.add(1, {_PROVIDER: provider}))

    def duration(self, operation: str, provider: str, seconds: float) -> None:
        """Record how long a start or an exec took; other operations have no histogram."""
        histogram = self._durations.get(operation)
        if histogram is not None:
            _quietly(lambda: histogram.record(seconds * 1000, {_PROVIDER: provider}))


class Span:
    """One operation: a span, and for what succeeded a sample of its duration."""

    def __init__(self, recorder: Recorder, tracer: Any, operation: str, provider: str, sandbox_id: str | None) -> None:
        self._recorder = recorder
        self._tracer = tracer
        self._operation = operation
        self._provider = provider
        self._sandbox_id = sandbox_id
        self._context: Any = None
        self._span: Any = None
        self._began = 0.0

    def __enter__(self) -> Span:
        self._began = time.perf_counter()
        _quietly(self._start)
        if self._sandbox_id is not None:
            self.sandbox_id(self._sandbox_id)
        return self

    def _start(self) -> None:
        context = self._tracer.start_as_current_span(
            f"gym.sandbox.{self._operation}",
            attributes={_PROVIDER: self._provider},
            record_exception=False,  # its text may hold what must not be recorded
            set_status_on_exception=False,
        )
        self._span = context.__enter__()
        self._context = context

    def _set(self, key: str, value: str | int) -> None:
        if self._span is not None:
            _quietly(lambda: self._span.set_attribute(key, value))

    def sandbox_id(self, sandbox_id: str) -> None:
        """Name the sandbox, once that is known."""
        self._set("nemo.gym.sandbox.id", sandbox_id)

    def result(self, result: SandboxExecResult) -> None:
        """Note how a command ended."""
        _quietly(lambda: self._result(result))

    def _result(self, result: SandboxExecResult) -> None:
        self._set("nemo.gym.sandbox.return_code", result.return_code)
        if result.error_type is not None:
            self._set("nemo.gym.sandbox.error_type", result.error_type)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            self._recorder.duration(self._operation, self._provider, time.perf_counter() - self._began)
        else:
            self._set("error.type", exc_type.__qualname__)
            _quietly(self._failed)
        if self._context is not None:
            _quietly(lambda: self._context.__exit__(None, None, None))

    def _failed(self) -> None:
        if self._span is not None:
            self._span.set_status(self._recorder.trace.StatusCode.ERROR)
