"""Cancelling: the operation has ended, and what it made is gone, before the task ends."""

from __future__ import annotations

import asyncio
import gc

import pytest

from nemo_gym_sandbox._core import codec, loop
from nemo_gym_sandbox._core.lib import library
from nemo_gym_sandbox._core.loop import running_bridge
from nemo_gym_sandbox.providers.base import SandboxSpec

from .conftest import Box, Mem


async def started(count: int) -> None:
    """Wait until so many operations are in flight in the library."""
    while library().stats()["operations"] < count:  # noqa: ASYNC110 - the library has no event for it
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancelled_command_has_ended(box: Box) -> None:
    task = asyncio.create_task(box.exec("sleep 1000"))
    await started(1)
    await cancelled(task)
    assert library().stats()["operations"] == 0


async def test_cancelling_before_the_task_ran(box: Box) -> None:
    await cancelled(asyncio.create_task(box.exec("sleep 1000")))
    assert library().stats()["operations"] == 0


async def test_a_cancelled_stream_has_ended(box: Box) -> None:
    began = asyncio.Event()

    async def stuck(chunk: bytes) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(box.stream("yes 100000000", on_stdout=stuck, stdin=b"x" * 10_000_000))
    await began.wait()
    await cancelled(task)
    stats = library().stats()
    assert (stats["operations"], stats["streams"]) == (0, 0)
    assert len(asyncio.all_tasks()) == 1


async def test_timeouts_of_asyncio_work(box: Box) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(box.exec("sleep 1000"), 0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await box.exec("sleep 1000")
    assert library().stats()["operations"] == 0
    assert (await box.exec("echo fine")).stdout == "fine\n"


async def test_a_cancelled_create_leaves_nothing() -> None:
    gc.collect()
    before = library().stats()["sandboxes"]
    provider = Mem({"create_delay_s": 1000})
    task = asyncio.create_task(provider.create(SandboxSpec()))
    await started(1)
    await cancelled(task)
    stats = library().stats()
    assert (stats["operations"], stats["sandboxes"]) == (0, before)


async def test_a_create_that_succeeded_as_it_was_cancelled_is_undone() -> None:
    """Whenever the cancellation comes relative to the success, nobody is left with a sandbox."""
    provider = Mem({})
    gc.collect()
    before = library().stats()["sandboxes"]
    undone = 0
    for turns in range(40):
        task = asyncio.create_task(provider.create(SandboxSpec()))
        for _ in range(turns // 4):
            await asyncio.sleep(0)
        task.cancel()
        try:
            handle = await task
        except asyncio.CancelledError:
            undone += 1
        else:
            await provider.close(handle)
            del handle
        del task
        gc.collect()
        assert library().stats()["sandboxes"] == before
    assert undone


async def test_a_reply_between_cancellation_and_wake_up_is_not_lost() -> None:
    """The task's future is cancelled, and the reply is drained before the task runs."""
    bridge = running_bridge()
    taken_back: list[int] = []

    def undo(reply: codec.Reply) -> None:
        taken_back.append(reply.status)

    task = asyncio.create_task(bridge.call(codec.NOOP, undo=undo))
    await asyncio.sleep(0)
    while library().stats()["operations"]:  # without a turn of the loop: the reply waits in the queue
        pass
    task.cancel()
    bridge._on_events()
    before = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert taken_back == [0]
    assert asyncio.get_running_loop().time() - before < loop.CANCEL_S / 2


async def test_cancelling_twice_does_not_cut_the_clean_up(box: Box) -> None:
    task = asyncio.create_task(box.exec("sleep 1000"))
    await started(1)
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert library().stats()["operations"] == 0


async def test_an_operation_that_does_not_end_holds_its_task_for_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CANCEL_S", 0.1)
    bridge = running_bridge()
    task = asyncio.create_task(bridge.call(codec.TEST, codec.encode({"what": "stubborn"})))
    await started(1)
    await cancelled(task)
    assert library().stats()["operations"] == 1
    bridge.close()


async def test_a_late_success_is_still_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CANCEL_S", 0.0)
    bridge = running_bridge()
    taken_back = asyncio.Event()
    task = asyncio.create_task(bridge.call(codec.NOOP, undo=lambda reply: taken_back.set()))
    await asyncio.sleep(0)
    await cancelled(task)
    await asyncio.wait_for(taken_back.wait(), 10)


async def test_more_than_fit_at_once_wait_their_turn(box: Box) -> None:
    results = await asyncio.gather(*(running_bridge().call(codec.NOOP) for _ in range(10_000)))
    assert {reply.status for reply in results} == {0}


async def test_waiting_for_a_turn_can_be_cancelled() -> None:
    bridge = running_bridge()
    wait = codec.encode({"what": "wait"})
    tasks = [asyncio.create_task(bridge.call(codec.TEST, wait)) for _ in range(4096)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(bridge.call(codec.NOOP)) for _ in range(3)]
    await asyncio.sleep(0)
    await cancelled(late[0])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [reply.status for reply in await asyncio.gather(*late[1:])] == [0, 0]
