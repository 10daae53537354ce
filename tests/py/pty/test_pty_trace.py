"""What is done for a terminal joins the trace of whoever asked for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from nemo_gym_sandbox import AsyncSandbox, telemetry
from nemo_gym_sandbox._core import codec
from nemo_gym_sandbox._core.loop import Bridge

if TYPE_CHECKING:
    import pytest


async def test_a_session_is_opened_and_attached_to_under_the_caller_s_span(
    on_local: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, Any] = {}
    call = Bridge.call

    async def listen(self: Bridge, op: int, request: bytes = b"", **options: Any) -> Any:
        asked[op] = json.loads(request).get("traceparent")
        return await call(self, op, request, **options)

    monkeypatch.setattr(Bridge, "call", listen)
    tracers = TracerProvider()
    telemetry.enable(tracer_provider=tracers, meter_provider=MeterProvider())
    try:
        with tracers.get_tracer("test").start_as_current_span("work") as span:
            about = span.get_span_context()
            async with await on_local.pty.create() as first:
                await (await on_local.pty.attach(first.session_id)).close()
        parent = f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"
        assert (asked[codec.PTY_OPEN], asked[codec.PTY_ATTACH]) == (parent, parent)
        async with await on_local.pty.create():
            assert asked[codec.PTY_OPEN] is None
    finally:
        telemetry.disable()
        tracers.shutdown()
