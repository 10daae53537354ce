"""One sandbox in several processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import SandboxStatus
from nemo_gym_sandbox.testing._box import Box, equal, expect, marker, raises, sandbox_processes, stdout_is
from nemo_gym_sandbox.testing._case import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = Group("share", own=True)
case = GROUP.case


async def _hand_over(box: Box) -> Box:
    """Connect to the sandbox through a second provider, by way of JSON as between two processes."""
    return await _connect(box, await box.sandbox.serialize())


async def _connect(box: Box, descriptor: Mapping[str, Any]) -> Box:
    other = box.another()
    other.sandbox = await AsyncSandbox.connect(json.loads(json.dumps(descriptor)), provider=other.provider)
    return other


@case(unless="no_connect")
async def another_process_gets_another_sandbox(box: Box) -> None:
    """It gets the same one, with its environment and directory, and may leave it."""
    await box.start(env={"V_SPEC": "kept\nhere"})
    await box.ok("echo from-the-first >shared.txt")
    other = await _hand_over(box)
    equal(other.sandbox.sandbox_id, box.sandbox.sandbox_id, "the id")
    stdout_is(await other.run('cat shared.txt; printf "%s" "$V_SPEC"'), "from-the-first\nkept\nhere")
    equal(await other.ok("pwd"), await box.ok("pwd"), "the directory")
    await other.sandbox.upload(box.local("f", b"up"), "up.txt")
    await box.bash("cat up.txt", "up")
    equal(await other.sandbox.status(), SandboxStatus.RUNNING, "the status")
    await other.sandbox.disconnect()
    await box.bash("echo alive", "alive\n")


@case(unless="no_connect")
async def defaults_are_lost_between_processes(box: Box) -> None:
    """They go along."""
    await box.start()
    folder = (await box.ok("mkdir -p sub; cd sub; pwd")).strip()
    box.sandbox.set_default_workdir(folder)
    if not box.backend.no_users:
        box.sandbox.set_default_user("12345")
    other = await _hand_over(box)
    await other.bash("pwd", f"{folder}\n")
    if not box.backend.no_users:
        await other.bash("id -u", "12345\n")
    await other.sandbox.disconnect()


@case(unless="no_connect")
async def the_descriptor_tells_secrets(box: Box) -> None:
    """Values of variables are not in it."""
    await box.start(env={"V_SECRET": "secret-value"}, files={"f": "secret-content"})
    text = json.dumps(await box.sandbox.serialize())
    expect("secret-value" not in text, "the value of a variable is in the descriptor")
    expect("secret-content" not in text, "the content of a file is in the descriptor")


@case(unless="no_connect")
async def only_the_creator_can_end_a_sandbox(box: Box) -> None:
    """Whoever connected can."""
    before = await box.leftovers()
    await box.start()
    other = await _hand_over(box)
    mark = marker()
    await box.ok(f"sleep {mark} >/dev/null 2>&1 </dev/null &")
    await other.sandbox.stop()

    async def ended() -> bool:
        return await box.sandbox.status() is SandboxStatus.STOPPED

    await box.wait("the creator sees the end", ended)
    await box.sandbox.stop()
    if not box.backend.remote_processes:
        equal(sandbox_processes(f"sleep\0{mark}"), [], "what is left")
    await box.nothing_more_than(before)


@case(unless="no_connect")
async def a_sandbox_that_has_ended_is_connected_to(box: Box) -> None:
    """It is refused."""
    await box.start()
    descriptor = await box.sandbox.serialize()
    await box.sandbox.stop()
    await raises(_connect(box, descriptor), RuntimeError, OSError, LookupError, what="connect")


@case()
async def a_stranger_to_the_sandbox_disconnects_its_creator(box: Box) -> None:
    """Its creator stops it."""
    await box.start()
    await raises(box.sandbox.disconnect(), RuntimeError, saying="connect()", what="disconnect")
    await box.bash("echo ok", "ok\n")


@case(unless="no_connect")
async def a_command_of_one_holds_back_the_other(box: Box) -> None:
    """Both go on."""
    await box.start()
    other = await _hand_over(box)
    mark = marker()
    async with box.running(f"sleep {mark}"):
        await box.wait_sleepers(mark, 1)
        await other.bash("echo ok", "ok\n")
    await other.sandbox.disconnect()


@case(only_if="no_connect")
async def a_missing_capability_is_silent(box: Box) -> None:
    """Asking for it raises."""
    await box.start()
    await raises(box.sandbox.serialize(), RuntimeError, NotImplementedError, saying="serialize", what="serialize")
