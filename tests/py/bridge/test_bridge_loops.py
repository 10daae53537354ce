"""One bridge per event loop, whatever loops there are."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from nemo_gym_sandbox._core import codec
from nemo_gym_sandbox._core.lib import library
from nemo_gym_sandbox._core.loop import running_bridge
from nemo_gym_sandbox.providers.base import SandboxHandle, SandboxSpec

from .conftest import Mem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def until(what: str, ok: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not ok():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def test_one_provider_from_loops_one_after_the_other() -> None:
    provider = Mem({})

    async def use() -> str:
        handle = await provider.create(SandboxSpec())
        results = await asyncio.gather(*(provider.exec(handle, f"echo {i}") for i in range(40)))
        await provider.close(handle)
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(40)]
        return handle.sandbox_id

    assert asyncio.run(use()) != asyncio.run(use())


def test_one_provider_and_one_sandbox_from_loops_at_once() -> None:
    provider = Mem({})
    shared: list[SandboxHandle] = [asyncio.run(provider.create(SandboxSpec()))]
    errors: list[BaseException] = []

    async def use(number: int) -> None:
        own = await provider.create(SandboxSpec())
        for i in range(20):
            size = 100_000 + number
            echo, large = await asyncio.gather(
                provider.exec(own, f"echo {number}-{i}"), provider.exec(shared[0], f"yes {size} {number}")
            )
            assert echo.stdout == f"{number}-{i}\n"
            assert large.stdout == (f"{number}\n" * size)[:size]
        await provider.close(own)

    def run(number: int) -> None:
        try:
            asyncio.run(use(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_a_bridge_goes_with_its_loop() -> None:
    gc.collect()
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await running_bridge().call(codec.NOOP)

    for _ in range(20):
        asyncio.run(use())
    gc.collect()
    assert [ref() for ref in loops if ref() is not None] == []
    until("bridges are closed", lambda: library().stats()["bridges"] == 0)


def test_a_loop_closed_with_operations_in_flight_is_quiet(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = Mem({})
    handle = asyncio.run(provider.create(SandboxSpec()))

    def leave() -> None:
        loop = asyncio.new_event_loop()

        async def begin() -> None:
            bridge = running_bridge()
            for _ in range(10):
                bridge.start(codec.EXEC, codec.encode({"sandbox": handle.raw.number, "command": "yes 100000"}))
            bridge.start(codec.TEST, codec.encode({"what": "wait"}))

        loop.run_until_complete(begin())
        loop.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leave()
        gc.collect()
        asyncio.run(provider.close(handle))  # a new bridge ends what is left of closed loops
        gc.collect()
        until("operations have ended", lambda: library().stats()["operations"] == 0)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_results_of_abandoned_loops_are_freed() -> None:
    provider = Mem({})
    handle = asyncio.run(provider.create(SandboxSpec()))

    async def leave() -> None:
        bridge = running_bridge()
        bridge.start(codec.EXEC, codec.encode({"sandbox": handle.raw.number, "command": "yes 1000000"}))
        while library().stats()["operations"]:
            pass
        assert library().stats()["streams"] == 1

    asyncio.run(leave())
    asyncio.run(provider.close(handle))
    gc.collect()
    until("the stream is gone", lambda: library().stats()["streams"] == 0)


def test_descriptors_do_not_leak() -> None:
    async def use() -> None:
        await running_bridge().call(codec.NOOP)

    asyncio.run(use())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(use())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_uvloop() -> None:
    provider = Mem({})

    async def use() -> None:
        handle = await provider.create(SandboxSpec())
        results = await asyncio.gather(*(provider.exec(handle, f"echo {i}") for i in range(500)))
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(500)]
        chunks: list[bytes] = []
        await provider.exec_stream(handle, "cat", stdin=b"x" * 1_000_000, on_stdout=chunks.append)
        assert b"".join(chunks) == b"x" * 1_000_000
        assert len((await provider.exec(handle, "yes 1000000")).stdout or "") == 1_000_000
        task = asyncio.ensure_future(provider.exec(handle, "sleep 1000"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await provider.close(handle)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(use())
    finally:
        loop.close()


def test_without_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        running_bridge()


async def test_few_threads_for_many_operations() -> None:
    bridge = running_bridge()
    wait = codec.encode({"what": "wait"})
    tasks = [asyncio.create_task(bridge.call(codec.TEST, wait)) for _ in range(1000)]
    await asyncio.sleep(0)
    while library().stats()["operations"] < 1000:  # noqa: ASYNC110 - the library has no event for it
        await asyncio.sleep(0)
    await asyncio.gather(*(bridge.call(codec.NOOP) for _ in range(3000)))
    threads = len(os.listdir("/proc/self/task"))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert threads < 20


async def test_log_records_of_the_library_reach_logging(caplog: pytest.LogCaptureFixture) -> None:
    from nemo_gym_sandbox._core import loop

    caplog.set_level(logging.DEBUG, "nemo_gym_sandbox")
    for level, expected in ((-4, 10), (0, 20), (4, 30), (8, 40)):
        loop._log(codec.encode({"level": level, "message": f"100% at {level}"}))
        assert (caplog.records[-1].levelno, caplog.records[-1].getMessage()) == (expected, f"100% at {level}")


def test_many_loops_do_not_wait_for_each_other() -> None:
    """A loop that is stuck in Python does not keep another from its results."""
    stop = threading.Event()
    provider = Mem({})

    def stuck() -> None:
        async def use() -> None:
            running_bridge().start(codec.NOOP)
            stop.wait(20)

        asyncio.run(use())

    async def use() -> Any:
        handle = await provider.create(SandboxSpec())
        return (await provider.exec(handle, "echo through")).stdout

    thread = threading.Thread(target=stuck)
    thread.start()
    run: Coroutine[Any, Any, Any] = use()
    assert asyncio.run(run) == "through\n"
    stop.set()
    thread.join()
