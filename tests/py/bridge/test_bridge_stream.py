"""Output as it arrives, and input."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nemo_gym_sandbox._core import codec, streams
from nemo_gym_sandbox._core.lib import library
from nemo_gym_sandbox._core.loop import running_bridge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .conftest import Box


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def test_output_comes_before_the_command_ends(box: Box) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    typed: asyncio.Queue[bytes] = asyncio.Queue()

    async def keyboard() -> AsyncIterator[bytes]:
        while chunk := await typed.get():
            yield chunk

    running = asyncio.create_task(box.stream("echo ready; cat", on_stdout=seen.put_nowait, stdin=keyboard()))
    assert await seen.get() == b"ready\n"
    typed.put_nowait(b"one")
    assert await seen.get() == b"one"
    typed.put_nowait(b"two")
    assert await seen.get() == b"two"
    typed.put_nowait(b"")
    result = await running
    assert (result.stdout, result.stderr, result.return_code) == (None, "", 0)


async def test_only_channels_with_a_callback_are_streamed(box: Box) -> None:
    chunks: list[bytes] = []
    result = await box.stream("echo out; echo err >&2", on_stderr=chunks.append)
    assert (result.stdout, result.stderr, b"".join(chunks)) == ("out\n", None, b"err\n")
    result = await box.stream("echo out; cat; echo err >&2", stdin=b"in\n")
    assert (result.stdout, result.stderr) == ("out\nin\n", "err\n")


async def test_bytes_arrive_unchanged_in_bounded_chunks(box: Box) -> None:
    data = bytes(range(256)) * 20_000
    chunks: list[bytes] = []

    async def take(chunk: bytes) -> None:
        chunks.append(chunk)
        if len(chunks) % 10 == 0:
            await asyncio.sleep(0)

    result = await box.stream("cat", on_stdout=take, stdin=data)
    assert result.return_code == 0
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= 64 << 10


async def test_input_from_an_async_source(box: Box) -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000
            await asyncio.sleep(0)

    result = await box.stream("wc", stdin=source())
    assert result.stdout == "1000000\n"


async def test_empty_input(box: Box) -> None:
    assert (await box.stream("wc", stdin=b"")).stdout == "0\n"
    assert (await box.exec("wc")).stdout == "0\n"


async def test_a_command_that_does_not_read_its_input_is_no_error(box: Box) -> None:
    assert (await box.stream("echo done", stdin=b"x" * (4 << 20))).stdout == "done\n"

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    assert (await box.stream("echo done", stdin=endless())).stdout == "done\n"
    assert (await box.stream("echo done", stdin=silent())).stdout == "done\n"
    assert library().stats()["streams"] == 0


async def test_a_slow_reader_slows_the_command_and_memory_stays(box: Box) -> None:
    total = 64 << 20
    got = 0
    held = 0.0
    before = resident_mib()

    async def slow(chunk: bytes) -> None:
        nonlocal got, held
        got += len(chunk)
        if got % (1 << 20) < len(chunk):
            held = max(held, resident_mib() - before)
            await asyncio.sleep(0.001)

    result = await box.stream(f"yes {total}", on_stdout=slow)
    assert (result.return_code, got) == (0, total)
    assert held < 16, f"memory grew by {held:.1f} MiB for {total >> 20} MiB of output"


async def test_a_reader_that_stops_holds_the_command(box: Box) -> None:
    go, began = asyncio.Event(), asyncio.Event()
    got = 0

    async def wait(chunk: bytes) -> None:
        nonlocal got
        got += len(chunk)
        began.set()
        await go.wait()

    running = asyncio.create_task(box.stream("yes 10000000; echo over >&2", on_stdout=wait))
    await began.wait()
    done, _ = await asyncio.wait([running], timeout=0.2)
    assert not done
    assert got <= 64 << 10
    go.set()
    assert (await running).stderr == "over\n"
    assert got == 10_000_000


async def test_a_callback_that_raises_ends_the_command(box: Box) -> None:
    def fail(chunk: bytes) -> None:
        raise LookupError("not wanted")

    async def fail_later(chunk: bytes) -> None:
        await asyncio.sleep(0)
        raise LookupError("not wanted")

    for callback in (fail, fail_later):
        with pytest.raises(LookupError, match="not wanted"):
            await box.stream("echo x; sleep 1000", on_stdout=callback, on_stderr=lambda chunk: None)
    stats = library().stats()
    assert (stats["streams"], stats["operations"]) == (0, 0)


async def test_a_source_that_raises_ends_the_command(box: Box) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("the disk is gone")

    with pytest.raises(LookupError, match="the disk is gone"):
        await box.stream("cat; sleep 1000", stdin=source())

    async def text() -> AsyncIterator[str]:
        yield "x"

    with pytest.raises(TypeError, match="stdin must give bytes, not str"):
        await box.stream("cat", stdin=text())
    stats = library().stats()
    assert (stats["streams"], stats["operations"]) == (0, 0)


async def test_the_reason_reaches_a_streamed_stderr(box: Box) -> None:
    chunks: list[bytes] = []
    result = await box.stream("sleep 1000", timeout_s=0.1, on_stderr=chunks.append)
    assert (result.stderr, result.error_type, result.return_code) == (None, "timeout", 125)
    assert b"".join(chunks) == b"mem command timed out after 0.1s"


async def test_many_streams_at_once(box: Box) -> None:
    async def one(number: int) -> None:
        chunks: list[bytes] = []
        result = await box.stream("cat; echo end", on_stdout=chunks.append, stdin=str(number).encode() * 1000)
        assert result.return_code == 0
        assert b"".join(chunks) == str(number).encode() * 1000 + b"end\n"

    await asyncio.gather(*(one(number) for number in range(100)))
    assert library().stats()["streams"] == 0


async def test_a_stream_that_ends_early_is_an_error_and_no_garbage(box: Box) -> None:
    bridge = running_bridge()
    reply = await bridge.call(codec.EXEC, codec.encode({"sandbox": box.handle.raw.number, "command": "yes 100000"}))
    stream = reply.framed()[0]["stdout"]["stream"]
    with pytest.raises(RuntimeError, match="ended 5 bytes early"):
        await streams.read_text(bridge, stream, 100_005, True)


async def test_the_loop_goes_on_while_a_large_output_is_read(box: Box) -> None:
    """Copying is cut into pieces between which others run."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    bridge = running_bridge()
    reply = await bridge.call(
        codec.EXEC, codec.encode({"sandbox": box.handle.raw.number, "command": f"yes {32 << 20}"})
    )
    about = reply.framed()[0]["stdout"]
    ticker = asyncio.create_task(other())
    text = await streams.read_text(bridge, about["stream"], about["len"], about["ascii"])
    ticker.cancel()
    assert len(text) == 32 << 20
    assert turns >= 31


async def test_a_large_ascii_output_is_held_once(box: Box) -> None:
    size = 64 << 20
    await box.exec(f"yes {1 << 20}")
    before = resident_mib()
    high = 0.0

    async def watch() -> None:
        nonlocal high
        while True:
            high = max(high, resident_mib() - before)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    result = await box.exec(f"yes {size}")
    high = max(high, resident_mib() - before)
    watcher.cancel()
    assert len(result.stdout) == size
    assert high < 64 * 1.1 + 4, f"memory grew by {high:.1f} MiB for 64 MiB"
