"""What commands print."""

from __future__ import annotations

import asyncio
import time

from nemo_gym_sandbox.testing._box import Box, code_is, equal, expect, marker, printed, raises, short, stdout_is, told
from nemo_gym_sandbox.testing._case import Group

GROUP = Group("output")
case = GROUP.case


@case(unless="as_lines")
async def bytes_that_are_no_text_lose_the_rest(box: Box) -> None:
    """What is not UTF-8 becomes replacement characters, all else stays."""
    raw = bytes(range(1, 256)) + b"\xe2\x98" + "☕".encode() + b"\0end"
    octal = "".join(f"\\{byte:03o}" for byte in raw)
    result = await box.run(f"printf '{octal}'; printf '{octal}' >&2")
    want = raw.decode("utf-8", "replace")
    code_is(result, 0)
    printed(result, want, want)


@case()
async def the_end_of_an_output_is_lost(box: Box) -> None:
    """Whatever its size, all of it is in the result."""
    for size in (0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1):
        stdout_is(await box.run(f"head -c {size} /dev/zero | tr '\\0' x; printf END"), "x" * size + "END")


@case()
async def the_end_of_a_quick_commands_output_is_lost(box: Box) -> None:
    """Also when the command ends at once."""
    for number in range(30):
        result = await box.run(f"printf out{number}; printf err{number} >&2; exit 3")
        code_is(result, 3)
        printed(result, f"out{number}", f"err{number}")


@case()
async def a_flood_on_one_stream_blocks_the_other(box: Box) -> None:
    """Both are read."""
    result = await box.run(
        "head -c 2097152 /dev/zero | tr '\\0' o; printf ok >&2; head -c 2097152 /dev/zero | tr '\\0' e >&2"
    )
    code_is(result, 0)
    printed(result, "o" * (2 << 20), "ok" + "e" * (2 << 20))


@case(unless="no_streaming")
async def output_is_held_until_the_end(box: Box) -> None:
    """It arrives while the command runs, and is then no part of the result."""
    first = asyncio.Event()
    seen: list[str] = []

    def take(text: str) -> None:
        seen.append(text)
        first.set()

    async with box.scratch() as scratch:
        command = f"echo first; until [ -e {scratch}/go ]; do sleep 0.05; done; echo kept >&2"
        async with box.running(command, on_stdout=take) as running:
            async with asyncio.timeout(box.deadline_s):
                await first.wait()
            await box.ok(f"touch {scratch}/go")
            result = await running
    code_is(result, 0)
    equal(result.stdout, None, "stdout")
    equal(result.stderr, told(result, "kept\n"), "stderr")
    equal("".join(seen), told(result, "first\n"), "what arrived")


@case(unless="no_back_pressure")
async def a_slow_reader_makes_memory_grow(box: Box) -> None:
    """The command waits for it instead."""
    size, got = 64 << 20, 0
    taken, release = asyncio.Event(), asyncio.Event()

    async def take(text: str) -> None:
        nonlocal got
        got += len(text)
        taken.set()
        await release.wait()

    async with box.scratch() as scratch:
        command = f"head -c {size} /dev/zero; touch {scratch}/done"
        async with box.running(command, on_stdout=take, timeout_s=3 * box.deadline_s) as running:
            async with asyncio.timeout(box.deadline_s):
                await taken.wait()
            # A command that is not held back writes this much in a fraction of the time.
            end = time.monotonic() + 0.7
            while time.monotonic() < end:
                expect(
                    (await box.run(f"test -e {scratch}/done")).return_code == 1,
                    "the command went on while its output was not taken",
                )
                await asyncio.sleep(0.1)
            release.set()
            code_is(await running, 0)
    equal(got, size, "how much arrived")


@case(unless="no_streaming")
async def a_character_is_torn_between_chunks(box: Box) -> None:
    """Callbacks get whole characters."""
    pieces: list[str] = []
    command = "for i in 1 2 3 4 5; do printf '\\342'; sleep 0.05; printf '\\230\\225'; sleep 0.05; done"
    await box.run(command, on_stdout=pieces.append)
    equal("".join(pieces), "☕" * 5, "what arrived")


@case(unless="no_streaming no_tree_kill")
async def a_callback_that_fails_leaves_its_command(box: Box) -> None:
    """The call raises what it raised, and the command has ended."""
    mark = marker()

    def fail(text: str) -> None:
        raise LookupError(f"no use for {text!r}")

    await raises(
        box.run(f"echo begun; sleep {mark}; sleep {mark}", on_stdout=fail), LookupError, what="a failing callback"
    )
    await box.wait_sleepers(mark, 0)


@case()
async def a_background_process_with_our_pipe_holds_the_result_back(box: Box) -> None:
    """The command's end is the end."""
    mark, began = marker(), time.monotonic()
    await box.bash(f"sleep {mark} & echo started", "started\n")
    expect(time.monotonic() - began < 5 * box.backend.slow, f"it took {time.monotonic() - began:g} s")
    await box.wait_sleepers(mark, 1)
    await box.end_sleepers(mark)


@case()
async def a_daemon_ends_with_the_command_that_started_it(box: Box) -> None:
    """What was left running runs on."""
    for options in ({}, {"preserve_background_services": True}):
        mark = marker()
        said = await box.ok(f"sleep {mark} >/dev/null 2>&1 </dev/null & echo up", **options)
        equal(said.strip(), "up", "stdout")
        await box.wait_sleepers(mark, 1)
        await box.end_sleepers(mark)


@case()
async def closed_streams_are_taken_for_the_end(box: Box) -> None:
    """The exit is the end."""
    code_is(await box.run("exec >&- 2>&-; sleep 0.3; exit 5"), 5)


@case(unless="no_streaming")
async def a_large_output_is_cut_or_damaged(box: Box) -> None:
    """All of it arrives, without being kept."""
    size, got, bad = 32 << 20, 0, ""
    line = "0123456789abcde\n"

    def take(text: str) -> None:
        nonlocal got, bad
        begin = got % len(line)
        if text != (line * (len(text) // len(line) + 2))[begin : begin + len(text)]:
            bad = bad or text
        got += len(text)

    command = f"yes {line.strip()} | head -c {size}"
    result = await box.run(command, on_stdout=take, timeout_s=6 * box.deadline_s)
    code_is(result, 0)
    whole = size - len(line) + len(told(result, line))
    equal((got, short(bad)), (whole, short("")), "what arrived")


@case(only_if="no_streaming")
async def a_callback_is_never_called(box: Box) -> None:
    """It gets everything at the end, or asking for what is missing raises."""
    heard: list[str] = []
    try:
        code_is(await box.run("echo x", on_stdout=heard.append), 0)
    except NotImplementedError as error:
        expect(box.sandbox.provider_name in str(error), f"{error!r} does not name the provider")
    else:
        equal("".join(heard).strip(), "x", "what the callback heard")
