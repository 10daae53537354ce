"""What commands read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nemo_gym_sandbox.testing._box import Box, expect, raises, stdout_is, text_pattern
from nemo_gym_sandbox.testing._case import Group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GROUP = Group("input")
case = GROUP.case


@case()
async def a_command_waits_for_input_that_was_not_given(box: Box) -> None:
    """Its input is empty then."""
    await box.bash("cat; echo done", "done\n")


@case(unless="no_stdin")
async def input_is_lost_or_changed(box: Box) -> None:
    """All of it arrives, whatever its size and form."""
    for size in (0, 1, 4096, 65537, (3 << 20) + 1):
        text = text_pattern(size)
        stdout_is(await box.run("cat", stdin=text), text)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"", b"two ", b"x" * 100_000):
            await asyncio.sleep(0)
            yield piece

    stdout_is(await box.run("cat", stdin=pieces()), f"one two {'x' * 100_000}")
    stdout_is(await box.run("cat", stdin=[b"a", b"b"]), "ab")


@case(unless="no_stdin")
async def input_arrives_without_its_end(box: Box) -> None:
    """The command sees its end."""
    stdout_is(await box.run("wc -l | tr -d ' '", stdin="a\nb\n"), "2\n")


@case(unless="no_stdin")
async def input_that_nobody_reads_holds_the_command_back(box: Box) -> None:
    """The command may leave it."""
    stdout_is(await box.run("echo ok", stdin=bytes(8 << 20)), "ok\n")


@case(unless="no_stdin")
async def input_that_never_ends_holds_the_result_back(box: Box) -> None:
    """The command's end is the end."""

    async def endless() -> AsyncIterator[bytes]:
        yield b"some"
        await asyncio.Event().wait()

    stdout_is(await box.run("echo ok", stdin=endless()), "ok\n")


@case(unless="no_stdin")
async def a_failing_source_of_input_hangs_the_command(box: Box) -> None:
    """The call raises what the source raised."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise LookupError("the source broke")

    await raises(box.run("wc -c; sleep 60", stdin=broken()), LookupError, what="a command with a broken source")


@case(unless="no_stdin")
async def input_is_taken_from_an_earlier_command(box: Box) -> None:
    """Each command has its own."""
    stdout_is(await box.run("head -c 1", stdin="first and a rest"), "f")
    stdout_is(await box.run("cat", stdin="second"), "second")
    await box.bash("cat", "")


@case(only_if="no_stdin")
async def input_is_dropped_in_silence(box: Box) -> None:
    """Asking for what is missing raises."""
    error = await raises(box.run("cat", stdin=b"x"), NotImplementedError, what="a command with input")
    expect(box.sandbox.provider_name in str(error), f"{error!r} does not name the provider")
