"""Commands that end before they are done: by a timeout, by being cancelled."""

from __future__ import annotations

import asyncio
import time

from nemo_gym_sandbox.providers.base import SandboxStatus
from nemo_gym_sandbox.testing._box import Box, equal, expect, marker, raises, short, stdout_is, timed_out, told
from nemo_gym_sandbox.testing._case import Group

GROUP = Group("timeout")
case = GROUP.case


def _ends_at_timeout(name: str, command: str, about: str, unless: str = "") -> None:
    """A case: a command that would not end, with MARK replaced by a marker, is gone after its timeout."""

    async def body(box: Box) -> None:
        mark, began = marker(), time.monotonic()
        timed_out(await box.run(command.replace("MARK", mark), timeout_s=1))
        took = time.monotonic() - began
        expect(took < 8 * box.backend.slow, f"it took {took:g} s")
        await box.wait_sleepers(mark, 0)

    body.__name__, body.__doc__ = name, about
    case(unless=unless)(body)


_ends_at_timeout("only_the_client_of_a_late_command_ends", "sleep MARK", "The command ends too.")
_ends_at_timeout("only_the_shell_of_a_late_command_ends", "sleep MARK & sleep MARK; wait", "What it started ends too.")
_ends_at_timeout(
    "a_grandchild_outlives_the_timeout",
    "sh -c 'sh -c \"sleep MARK; true\"; true'; true",
    "What that started ends too.",
)
_ends_at_timeout(
    "a_child_in_its_own_session_outlives_the_timeout",
    "setsid sh -c 'sleep MARK & sleep MARK' & sleep MARK",
    "It ends too.",
    "no_tree_kill",
)
_ends_at_timeout(
    "an_orphan_outlives_the_timeout",
    "(setsid sh -c 'setsid sleep MARK >/dev/null 2>&1 </dev/null &' &) ; sleep MARK",
    "It ends too.",
    "no_tree_kill",
)
_ends_at_timeout(
    "what_ignores_polite_signals_outlives_the_timeout", "trap '' TERM INT HUP; sleep MARK; sleep MARK", "It is killed."
)
_ends_at_timeout("what_is_stopped_outlives_the_timeout", "sleep MARK & kill -STOP $!; kill -STOP $$", "It is killed.")
_ends_at_timeout(
    "what_keeps_forking_outlives_the_timeout",
    "while :; do sleep MARK & sleep 0.02; done",
    "All of it is killed.",
    "no_tree_kill",
)


@case()
async def what_was_printed_before_the_timeout_is_lost(box: Box) -> None:
    """It is in the result, with a last line about the timeout on stderr."""
    result = await box.run(f"echo out; echo err >&2; sleep {marker()}", timeout_s=1)
    timed_out(result)
    if box.backend.merged_output:
        equal(result.stdout, "out\nerr\n", "the output")
        expect("timed out after 1s" in (result.stderr or ""), f"stderr is {short(result.stderr)}")
        return
    equal(result.stdout, told(result, "out\n"), "stdout")
    lines = (result.stderr or "").splitlines()
    expect(len(lines) == 2 and lines[0] == "err" and "timed out after 1s" in lines[1], f"stderr is {short(lines)}")


@case()
async def endless_output_holds_the_timeout_back(box: Box) -> None:
    """It ends in time."""
    began = time.monotonic()
    result = await box.run("while :; do echo y; done", timeout_s=1)  # not "yes": all of it may be kept
    timed_out(result)
    expect(time.monotonic() - began < 15 * box.backend.slow, f"it took {time.monotonic() - began:g} s")
    expect((result.stdout or "").startswith("y\ny\n"), f"stdout is {short(result.stdout)}")


@case(unless="no_back_pressure")
async def a_reader_that_stands_still_holds_the_timeout_back(box: Box) -> None:
    """The command ends in the sandbox although nobody here takes what it printed."""
    mark, release = marker(), asyncio.Event()

    async def stand(_text: str) -> None:
        await release.wait()

    async with box.running(f"sleep {mark} & yes", timeout_s=1, on_stdout=stand) as running:
        await box.wait_sleepers(mark, 1)
        await box.wait_sleepers(mark, 0)
        expect(not running.done(), "the call returned although its callback did not")
        release.set()
        timed_out(await running)


@case()
async def a_daemon_ends_with_the_timeout_of_a_later_command(box: Box) -> None:
    """Only what the late command started ends."""
    mark = marker()
    await box.ok(f"sleep {mark} >/dev/null 2>&1 </dev/null &")
    timed_out(await box.run(f"sleep {marker()}", timeout_s=1))
    await box.wait_sleepers(mark, 1)
    await box.end_sleepers(mark)


@case()
async def the_sandbox_is_unusable_after_a_timeout(box: Box) -> None:
    """The next command runs."""
    timed_out(await box.run(f"sleep {marker()}", timeout_s=0.2))
    await box.bash("echo ok", "ok\n")


@case()
async def a_timeout_ends_a_command_that_has_none(box: Box) -> None:
    """None is the provider's default, and infinity none at all."""
    for timeout_s in (None, float("inf")):
        stdout_is(await box.run("sleep 0.2; echo ok", timeout_s=timeout_s), "ok\n")


async def _cancel(running: asyncio.Task[object], box: Box) -> None:
    running.cancel()
    await asyncio.wait([running], timeout=8 * box.backend.slow)
    expect(running.done(), "the cancelled call does not return")
    expect(running.cancelled(), "the cancellation was swallowed")


@case()
async def a_cancelled_command_goes_on(box: Box) -> None:
    """It ends with what it started, and the call raises CancelledError."""
    mark = marker()
    async with box.running(f"sleep {mark} & sleep {mark}; wait") as running:
        await box.wait_sleepers(mark, 2)
        await _cancel(running, box)
    await box.wait_sleepers(mark, 0)


@case(unless="no_tree_kill")
async def a_cancelled_commands_own_session_goes_on(box: Box) -> None:
    """It ends too."""
    mark = marker()
    command = f"(setsid sleep {mark} >/dev/null 2>&1 </dev/null &); trap '' TERM; sleep {mark}"
    async with box.running(command) as running:
        await box.wait_sleepers(mark, 2)
        await _cancel(running, box)
    await box.wait_sleepers(mark, 0)


@case()
async def the_callers_own_deadline_is_overlooked(box: Box) -> None:
    """A deadline around the call is kept, and the command has ended."""
    mark, began = marker(), time.monotonic()

    async def within() -> None:
        async with asyncio.timeout(1):
            await box.run(f"sleep {mark}")

    await raises(within(), TimeoutError, what="a call with a deadline")
    expect(time.monotonic() - began < 8 * box.backend.slow, f"it took {time.monotonic() - began:g} s")
    await box.wait_sleepers(mark, 0)


@case()
async def cancelling_one_command_ends_another(box: Box) -> None:
    """Each call stands for itself."""
    mark, other = marker(), marker()
    async with box.running(f"sleep {mark}"), box.running(f"sleep {other}") as second:
        await box.wait_sleepers(mark, 1)
        await box.wait_sleepers(other, 1)
        await _cancel(second, box)
        await box.wait_sleepers(other, 0)
        await box.wait_sleepers(mark, 1)
    await box.wait_sleepers(mark, 0)


@case()
async def control_calls_starve_behind_long_commands(box: Box) -> None:
    """They go beside them."""
    mark, many = marker(), min(40, box.backend.max_in_flight)
    stack = [asyncio.create_task(box.run(f"sleep {mark}", timeout_s=6 * box.deadline_s)) for _ in range(many)]
    try:
        await box.wait_sleepers(mark, many)
        began = time.monotonic()
        equal(await box.sandbox.status(), SandboxStatus.RUNNING, "the status")
        await box.bash("echo ok", "ok\n")
        expect(time.monotonic() - began < 5 * box.backend.slow, f"it took {time.monotonic() - began:g} s")
    finally:
        for task in stack:
            task.cancel()
        await asyncio.wait(stack, timeout=box.deadline_s)
    await box.wait_sleepers(mark, 0)
