"""Spans and metrics, read back from an OpenTelemetry SDK in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from api_doubles import FullProvider, MemoryProvider
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nemo_gym_sandbox import AsyncSandbox, SandboxExecResult, SandboxSpec, telemetry
from nemo_gym_sandbox._core import codec
from nemo_gym_sandbox._core.native import NativeProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER = "nemo.gym.sandbox.provider"


class Recorded:
    """What an application's SDK has seen."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._metrics])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        if data is None:
            return []
        metrics = [m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def active(self) -> int:
        return sum(point.value for point in self.points("gym.sandbox.active"))

    def samples(self, name: str) -> int:
        return sum(point.count for point in self.points(name))


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    seen = Recorded()
    telemetry.enable(tracer_provider=seen.tracers, meter_provider=seen.meters)
    yield seen
    telemetry.disable()
    seen.tracers.shutdown()
    seen.meters.shutdown()


async def test_spans_of_a_life(recorded: Recorded):
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider, SandboxSpec(env={"K": "secret-value"})).start()
    await sandbox.exec("echo secret-command", env={"K": "secret-value"})
    await sandbox.stop()
    spans = recorded.spans
    assert [span.name for span in spans] == ["gym.sandbox.start", "gym.sandbox.exec", "gym.sandbox.stop"]
    for span in spans:
        assert span.attributes is not None
        assert span.attributes[PROVIDER] == "memory"
        assert span.attributes["nemo.gym.sandbox.id"] == "box-0"
        assert "secret" not in span.to_json()
    assert spans[1].attributes is not None
    assert spans[1].attributes["nemo.gym.sandbox.return_code"] == 0
    assert "nemo.gym.sandbox.error_type" not in spans[1].attributes


async def test_metrics_of_a_life(recorded: Recorded):
    sandbox = await AsyncSandbox(MemoryProvider(), SandboxSpec()).start()
    assert recorded.active() == 1
    await sandbox.exec("x")
    await sandbox.exec("y")
    await sandbox.stop()
    await sandbox.stop()
    assert recorded.active() == 0
    assert recorded.samples("gym.sandbox.startup_duration_ms") == 1
    assert recorded.samples("gym.sandbox.exec_duration_ms") == 2
    point = recorded.points("gym.sandbox.exec_duration_ms")[0]
    assert dict(point.attributes) == {PROVIDER: "memory"}
    assert list(point.explicit_bounds) == [
        250, 500, 1000, 2000, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000,
    ]  # fmt: skip


async def test_how_a_command_failed(recorded: Recorded):
    provider = MemoryProvider(exec=[ValueError("about echo secret-command")])
    sandbox = await AsyncSandbox(provider, SandboxSpec()).start()
    with pytest.raises(ValueError, match="secret"):
        await sandbox.exec("echo secret-command")

    async def timed_out(*_: object, **__: object) -> SandboxExecResult:
        return SandboxExecResult("", "", 125, "timeout")

    provider.exec = timed_out  # type: ignore[method-assign]
    await sandbox.exec("y")
    failed, late = recorded.spans[1:]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert not failed.events
    assert "secret" not in failed.to_json()
    assert late.attributes is not None
    assert late.attributes["nemo.gym.sandbox.error_type"] == "timeout"
    assert late.attributes["nemo.gym.sandbox.return_code"] == 125
    await sandbox.stop()


async def test_a_failed_create_counts_nothing(recorded: Recorded):
    sandbox = AsyncSandbox(MemoryProvider(create=[RuntimeError("x")]), SandboxSpec())
    with pytest.raises(RuntimeError):
        await sandbox.start()
    await sandbox.stop()
    assert recorded.points("gym.sandbox.active") == []
    assert recorded.samples("gym.sandbox.startup_duration_ms") == 0


async def test_a_failed_upload_at_the_start_ends_at_zero(recorded: Recorded):
    with pytest.raises(OSError, match="x"):
        await AsyncSandbox(MemoryProvider(upload_file=[OSError("x")]), SandboxSpec(files={"/a": ""})).start()
    assert recorded.active() == 0
    assert recorded.samples("gym.sandbox.startup_duration_ms") == 0


async def test_a_failed_close_keeps_it_counted_until_the_retry(recorded: Recorded):
    sandbox = await AsyncSandbox(MemoryProvider(close=[RuntimeError("x")]), SandboxSpec()).start()
    with pytest.raises(RuntimeError):
        await sandbox.stop()
    assert recorded.active() == 1
    await sandbox.stop()
    assert recorded.active() == 0


async def test_connected_sandboxes_do_not_count(recorded: Recorded):
    await (await AsyncSandbox.connect({"sandbox_id": "x"}, provider=FullProvider())).stop()
    assert recorded.points("gym.sandbox.active") == []


async def test_what_was_counted_in_is_counted_out_after_disabling(recorded: Recorded):
    sandbox = await AsyncSandbox(MemoryProvider(), SandboxSpec()).start()
    telemetry.disable()
    assert not telemetry.enabled()
    await sandbox.exec("x")
    await sandbox.stop()
    assert recorded.active() == 0
    assert [span.name for span in recorded.spans] == ["gym.sandbox.start"]


async def test_service_preservation_is_the_same_with_telemetry(recorded: Recorded):
    class Old(MemoryProvider):
        async def exec_with_background_services(self, handle, command, *, cwd=None, timeout_s=None):
            return SandboxExecResult("served", "", 0)

    sandbox = await AsyncSandbox(Old(), SandboxSpec()).start()
    assert (await sandbox.exec("x", preserve_background_services=True)).stdout == "served"
    with pytest.raises(ValueError, match="per-command env or user"):
        await sandbox.exec("x", user=0, preserve_background_services=True)
    await sandbox.stop()


async def test_retries_and_the_span_for_backends(recorded: Recorded):
    telemetry.record_create_retry("memory")
    telemetry.record_create_retry("memory")
    assert recorded.points("gym.sandbox.create_retry_total")[0].value == 2
    assert telemetry.traceparent() is None

    class Asks(MemoryProvider):
        async def exec(self, *args: Any, **kwargs: Any) -> SandboxExecResult:
            return SandboxExecResult(telemetry.traceparent(), "", 0)

    sandbox = await AsyncSandbox(Asks(), SandboxSpec()).start()
    parent = (await sandbox.exec("x")).stdout
    context = recorded.spans[-1].context
    assert context is not None
    assert parent is not None
    assert parent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert int(parent[-2:], 16) & 1
    await sandbox.stop()


async def test_requests_to_the_library_name_their_span(recorded: Recorded, monkeypatch: pytest.MonkeyPatch):
    requests: list[dict[str, Any]] = []
    call = NativeProvider._call

    async def listen(self: NativeProvider, op: int, request: bytes, **options: Any) -> Any:
        requests.append({"op": op, **json.loads(request)})
        return await call(self, op, request, **options)

    monkeypatch.setattr(NativeProvider, "_call", listen)
    sandbox = await AsyncSandbox({"local": {"isolation": "none"}}, SandboxSpec()).start()
    await sandbox.exec("true")
    await sandbox.exec("true", on_stdout=len)
    telemetry.disable()
    await sandbox.exec("true")
    await sandbox.stop()
    named = {span.name: span.context for span in recorded.spans if span.context is not None}
    parents = [(request["op"], request.get("traceparent")) for request in requests]
    assert [op for op, _ in parents] == [
        codec.CREATE,
        codec.EXEC,
        codec.EXEC,
        codec.EXEC,
        codec.STOP,
        codec.PROVIDER_CLOSE,
    ]
    for position, name in ((0, "gym.sandbox.start"), (2, "gym.sandbox.exec")):
        span = named[name]
        assert parents[position][1] == f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    assert parents[1][1] not in (None, parents[2][1])
    assert [parent for _, parent in parents[3:]] == [None] * 3


async def test_recording_errors_do_not_reach_the_caller():
    class Broken:
        def __getattr__(self, name: str) -> Any:
            def instrument(*_: object, **__: object) -> Any:
                if name in {"start_as_current_span", "add", "record", "set_attribute"}:
                    raise RuntimeError("the exporter is broken")
                return Broken()

            return instrument

    telemetry.enable(tracer_provider=Broken(), meter_provider=Broken())
    try:
        sandbox = await AsyncSandbox(MemoryProvider(), SandboxSpec()).start()
        assert (await sandbox.exec("x")).return_code == 0
        await sandbox.stop()
        telemetry.record_create_retry("memory")
    finally:
        telemetry.disable()


def fresh(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_the_environment_turns_it_on():
    ask = "from nemo_gym_sandbox import telemetry; print(telemetry.enabled(), 'opentelemetry' in sys.modules)"
    assert fresh(ask) == "False False"
    assert fresh(ask, NEMO_GYM_SANDBOX_TELEMETRY="0") == "False False"
    assert fresh(ask, NEMO_GYM_SANDBOX_TELEMETRY="1") == "True True"


def test_without_the_library_it_stays_off_and_says_so():
    hide = "sys.modules['opentelemetry'] = None\nfrom nemo_gym_sandbox import telemetry\n"
    assert (
        fresh(hide + "print(telemetry.enabled(), telemetry.enabled())", NEMO_GYM_SANDBOX_TELEMETRY="1") == "False False"
    )
    raised = fresh(hide + "try:\n telemetry.enable()\nexcept RuntimeError as error:\n print(error)")
    assert "nemo-gym-sandbox[otel]" in raised
