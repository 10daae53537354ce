"""Starting and stopping: order, repetition, failures, cancellation, and calls at the same time."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from api_doubles import FullProvider, MemoryProvider

from nemo_gym_sandbox import AsyncSandbox, SandboxSpec, SandboxStatus

SPEC = SandboxSpec(image="img", workdir="/w")


async def test_before_the_start_nothing_works_but_status():
    sandbox = AsyncSandbox(MemoryProvider(), SPEC)
    assert await sandbox.status() is SandboxStatus.UNKNOWN
    for call in (
        sandbox.exec("x"),
        sandbox.upload("a", "b"),
        sandbox.download("a", "b"),
        sandbox.pause(),
        sandbox.resume(),
    ):
        with pytest.raises(RuntimeError, match="has not been started"):
            await call
    assert sandbox.sandbox_id is None


async def test_start_needs_a_spec_and_happens_once():
    provider = MemoryProvider()
    sandbox = AsyncSandbox(provider)
    with pytest.raises(ValueError, match="requires a SandboxSpec"):
        await sandbox.start()
    assert await sandbox.start(SPEC) is sandbox
    assert provider.specs == [SPEC]
    assert provider.specs[0] is SPEC
    assert sandbox.spec is SPEC
    with pytest.raises(RuntimeError, match="already started"):
        await sandbox.start()
    await sandbox.stop()
    with pytest.raises(RuntimeError, match="has been stopped"):
        await sandbox.start()
    with pytest.raises(RuntimeError, match="has been stopped"):
        await sandbox.exec("x")


@pytest.mark.parametrize("provider", ["local", None, 5, [{"local": {}}], MemoryProvider], ids=str)
async def test_what_is_no_provider_is_said_at_once(provider: Any):
    with pytest.raises(TypeError, match=r"a mapping \{name: configuration\} .* not (str|NoneType|int|list|the class)"):
        AsyncSandbox(provider)


async def test_a_spec_is_no_mapping():
    provider = MemoryProvider()
    for spec in ({"image": "debian:12"}, "debian:12", SandboxSpec):
        with pytest.raises(TypeError, match=r"spec must be a SandboxSpec, not (dict|str|the class SandboxSpec)"):
            await AsyncSandbox(provider, spec).start()  # type: ignore[arg-type]
    assert provider.calls == []


async def test_a_spec_given_to_start_wins_and_is_kept():
    other = SandboxSpec(image="other", workdir="/o")
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider, SPEC).start(other)
    await sandbox.exec("x")
    assert provider.specs == [other]
    assert provider.execs[0][1]["cwd"] == "/o"


async def test_files_of_the_spec_are_uploaded_in_order():
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider).start(SandboxSpec(files={"/b": "zwei ☕\r\n", "/a": ""}))
    assert list(provider.files.items()) == [("/b", "zwei ☕\r\n".encode()), ("/a", b"")]
    assert provider.calls == ["create", "upload_file", "upload_file"]
    await sandbox.stop()


async def test_files_are_left_to_a_provider_that_writes_them():
    class Writes(FullProvider):
        writes_spec_files = True

    provider = Writes()
    spec = SandboxSpec(files={"/a": "x"})
    await AsyncSandbox(provider, spec).start()
    assert provider.calls == ["create"]
    assert provider.specs[0] is spec
    # Whose they are depends on a default that create() does not know.
    sandbox = AsyncSandbox(provider, spec)
    sandbox.set_default_user("agent")
    await sandbox.start()
    assert provider.calls[1:] == ["create", "set_defaults", "upload_file"]
    assert provider.specs[1].files == {}


async def test_a_double_that_answers_to_every_name_gets_its_files_uploaded():
    double = AsyncMock()
    await AsyncSandbox(double, SandboxSpec(files={"/a": "x"})).start()
    assert double.upload_file.await_count == 1


@pytest.mark.parametrize("owns", [True, False])
async def test_a_failed_upload_at_the_start_stops_the_sandbox(owns: bool):
    provider = MemoryProvider(upload_file=[OSError("disk full")])
    sandbox = AsyncSandbox(provider, SandboxSpec(files={"/a": "x", "/b": "y"}), owns_provider=owns)
    with pytest.raises(OSError, match="disk full"):
        await sandbox.start()
    assert provider.calls == ["create", "upload_file", "close"] + (["aclose"] if owns else [])
    assert await sandbox.status() is SandboxStatus.STOPPED
    await sandbox.stop()
    assert provider.calls.count("close") == 1


async def test_what_goes_wrong_after_a_failed_start_does_not_hide_it_and_can_be_repeated(
    caplog: pytest.LogCaptureFixture,
):
    provider = MemoryProvider(upload_file=[OSError("disk full")], close=[RuntimeError("engine gone")])
    sandbox = AsyncSandbox(provider, SandboxSpec(files={"/a": "x"}))
    with pytest.raises(OSError, match="disk full"):
        await sandbox.start()
    assert "engine gone" in caplog.text
    await sandbox.stop()
    assert provider.calls == ["create", "upload_file", "close", "close", "aclose"]


async def test_a_failed_create_leaves_the_sandbox_new():
    provider = MemoryProvider(create=[RuntimeError("no room")])
    sandbox = AsyncSandbox(provider, SPEC)
    with pytest.raises(RuntimeError, match="no room"):
        await sandbox.start()
    assert await sandbox.status() is SandboxStatus.UNKNOWN
    await sandbox.start()
    await sandbox.stop()
    assert provider.calls == ["create", "create", "close", "aclose"]


async def test_cancelling_during_the_upload_deletes_what_was_created():
    provider = MemoryProvider()
    reached, _ = provider.hold("upload_file")
    sandbox = AsyncSandbox(provider, SandboxSpec(files={"/a": "x"}))
    task = asyncio.create_task(sandbox.start())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.calls == ["create", "upload_file", "close", "aclose"]


async def test_cancelling_twice_still_deletes_what_was_created():
    provider = MemoryProvider()
    uploading, _ = provider.hold("upload_file")
    closing, let_close = provider.hold("close")
    sandbox = AsyncSandbox(provider, SandboxSpec(files={"/a": "x"}))
    task = asyncio.create_task(sandbox.start())
    await uploading.wait()
    task.cancel()
    await closing.wait()
    task.cancel()
    await asyncio.sleep(0)
    let_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.calls == ["create", "upload_file", "close", "aclose"]


async def test_a_sandbox_that_is_ready_in_the_moment_of_the_cancellation_is_not_left_behind():
    class Late(MemoryProvider):
        async def create(self, spec: SandboxSpec):
            handle = await super().create(spec)
            asyncio.get_running_loop().call_soon(start.cancel)
            return handle

    provider = Late()
    sandbox = AsyncSandbox(provider, SPEC)
    start = asyncio.create_task(sandbox.start())
    with pytest.raises(asyncio.CancelledError):
        await start
    assert provider.calls == ["create", "close", "aclose"]
    assert await sandbox.status() is SandboxStatus.STOPPED


class Stubborn(MemoryProvider):
    """Goes on creating when it is cancelled."""

    async def create(self, spec: SandboxSpec):
        try:
            return await super().create(spec)
        except asyncio.CancelledError:
            self.gates.clear()
            return await super().create(spec)


async def test_a_provider_that_ignores_the_cancellation_of_create_leaves_nothing():
    provider = Stubborn()
    reached, _ = provider.hold("create")
    task = asyncio.create_task(AsyncSandbox(provider, SPEC).start())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.calls == ["create", "create", "close", "aclose"]


async def test_a_provider_that_ignores_the_stop_during_create_leaves_nothing():
    provider = Stubborn()
    reached, _ = provider.hold("create")
    sandbox = AsyncSandbox(provider, SPEC)
    start = asyncio.create_task(sandbox.start())
    await reached.wait()
    await sandbox.stop()
    with pytest.raises(RuntimeError, match="stopped while it was starting"):
        await start
    assert provider.calls == ["create", "create", "close", "aclose"]


async def test_stopping_during_the_start_cancels_it():
    provider = MemoryProvider()
    reached, _ = provider.hold("create")
    sandbox = AsyncSandbox(provider, SPEC)
    start = asyncio.create_task(sandbox.start())
    await reached.wait()
    assert await sandbox.status() is SandboxStatus.STARTING
    await sandbox.stop()
    with pytest.raises(RuntimeError, match="stopped while it was starting"):
        await start
    assert provider.calls == ["create", "aclose"]
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_stop_closes_once_and_then_the_provider():
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider, SPEC).start()
    await sandbox.stop()
    await sandbox.stop()
    assert provider.calls == ["create", "close", "aclose"]
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_stopping_what_never_started_only_closes_the_provider():
    provider = MemoryProvider()
    sandbox = AsyncSandbox(provider, SPEC)
    await sandbox.stop()
    assert provider.calls == ["aclose"]
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_a_provider_that_is_not_owned_stays_open():
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider, SPEC, owns_provider=False).start()
    await sandbox.stop()
    assert provider.calls == ["create", "close"]


@pytest.mark.parametrize("error", [RuntimeError("x"), TimeoutError("x"), asyncio.CancelledError()])
async def test_a_failed_close_can_be_repeated(error: BaseException):
    provider = MemoryProvider(close=[error])
    sandbox = await AsyncSandbox(provider, SPEC).start()
    with pytest.raises(type(error)):
        await sandbox.stop()
    assert provider.calls == ["create", "close"]
    assert (await sandbox.exec("still there")).return_code == 0
    await sandbox.stop()
    await sandbox.stop()
    assert provider.calls == ["create", "close", "exec", "close", "aclose"]


async def test_a_failed_aclose_is_repeated_without_close():
    provider = MemoryProvider(aclose=[RuntimeError("x")])
    sandbox = await AsyncSandbox(provider, SPEC).start()
    with pytest.raises(RuntimeError):
        await sandbox.stop()
    await sandbox.stop()
    assert provider.calls == ["create", "close", "aclose", "aclose"]


async def test_many_stops_at_once_close_once():
    provider = MemoryProvider()
    reached, go_on = provider.hold("close")
    sandbox = await AsyncSandbox(provider, SPEC).start()
    stops = [asyncio.create_task(sandbox.stop()) for _ in range(5)]
    await reached.wait()
    go_on.set()
    await asyncio.gather(*stops)
    assert provider.calls == ["create", "close", "aclose"]


async def test_a_cancelled_stop_leaves_the_work_to_the_next():
    provider = MemoryProvider()
    reached, go_on = provider.hold("close")
    sandbox = await AsyncSandbox(provider, SPEC).start()
    first = asyncio.create_task(sandbox.stop())
    await reached.wait()
    second = asyncio.create_task(sandbox.stop())
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    await second
    assert provider.calls == ["create", "close", "close", "aclose"]


async def test_stop_with_commands_in_flight():
    provider = MemoryProvider()
    reached, go_on = provider.hold("exec")
    sandbox = await AsyncSandbox(provider, SPEC).start()
    running = [asyncio.create_task(sandbox.exec(f"c{i}")) for i in range(3)]
    await reached.wait()
    await sandbox.stop()
    go_on.set()
    assert [result.return_code for result in await asyncio.gather(*running)] == [0, 0, 0]
    assert provider.calls.count("close") == 1


async def test_the_context_manager_stops_and_does_not_start():
    provider = MemoryProvider()
    async with AsyncSandbox(provider, SPEC) as sandbox:
        assert provider.calls == []
        await sandbox.start()
    assert provider.calls == ["create", "close", "aclose"]
    with pytest.raises(KeyError):
        async with AsyncSandbox(MemoryProvider(), SPEC):
            raise KeyError("mine")


async def test_start_with_setup_returns_a_running_sandbox():
    provider = MemoryProvider()

    async def setup(box: AsyncSandbox) -> None:
        await box.exec("prepare")

    sandbox = await AsyncSandbox(provider).start_with_setup(SPEC, setup)
    assert await sandbox.status() is SandboxStatus.RUNNING
    assert provider.execs[0][0] == "prepare"


async def test_a_failed_setup_stops_the_sandbox():
    provider = MemoryProvider()

    async def setup(_: AsyncSandbox) -> None:
        raise LookupError("no tools")

    with pytest.raises(LookupError, match="no tools"):
        await AsyncSandbox(provider).start_with_setup(SPEC, setup)
    assert provider.calls == ["create", "close", "aclose"]


async def test_a_cancelled_setup_stops_the_sandbox():
    provider = MemoryProvider()
    inside = asyncio.Event()

    async def setup(_: AsyncSandbox) -> None:
        inside.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(AsyncSandbox(provider).start_with_setup(SPEC, setup))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.calls == ["create", "close", "aclose"]


async def test_status_is_the_providers_answer_as_it_is():
    provider = MemoryProvider()
    sandbox = await AsyncSandbox(provider, SPEC).start()
    for state in SandboxStatus:
        provider.state = state
        assert await sandbox.status() is state


async def test_pause_and_resume_pass_one_handle():
    provider = FullProvider()
    sandbox = await AsyncSandbox(provider, SPEC).start()
    await sandbox.pause()
    assert await sandbox.status() is SandboxStatus.PAUSED
    await sandbox.resume()
    await sandbox.exec("x")
    assert provider.execs[0][1]["handle"] is provider.handles[0]
    assert provider.handles[0].raw == "renewed"


async def test_pause_without_the_capability():
    sandbox = AsyncSandbox(MemoryProvider(), SPEC)
    with pytest.raises(RuntimeError, match="has not been started"):
        await sandbox.pause()
    await sandbox.start()
    for call in (sandbox.pause(), sandbox.resume()):
        with pytest.raises(NotImplementedError, match="'memory' does not support pause/resume"):
            await call


async def test_methods_that_are_mocks_work_too():
    provider = MemoryProvider()
    provider.close = AsyncMock()  # type: ignore[method-assign]
    provider.pause = AsyncMock()  # type: ignore[attr-defined]
    provider.resume = AsyncMock()  # type: ignore[attr-defined]
    sandbox = await AsyncSandbox(provider, SPEC).start()
    await sandbox.pause()
    await sandbox.stop()
    provider.close.assert_awaited_once_with(provider.handles[0])
    provider.pause.assert_awaited_once_with(provider.handles[0])  # type: ignore[attr-defined]


def test_one_sandbox_over_two_event_loops():
    provider = MemoryProvider(close=[RuntimeError("first loop")])
    sandbox = AsyncSandbox(provider, SPEC)

    async def first() -> None:
        await sandbox.start()
        results = await asyncio.gather(*(sandbox.stop() for _ in range(2)), return_exceptions=True)
        assert sum(isinstance(result, RuntimeError) for result in results) == 1

    asyncio.run(first())
    asyncio.run(sandbox.stop())
    assert provider.calls == ["create", "close", "close", "aclose"]
