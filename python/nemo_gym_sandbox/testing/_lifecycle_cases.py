"""From the start to the end of a sandbox."""

from __future__ import annotations

import asyncio
import itertools
import os
import time

from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import SandboxStatus
from nemo_gym_sandbox.testing._box import (
    Box,
    equal,
    expect,
    marker,
    quote,
    raises,
    sandbox_processes,
    short,
    stdout_is,
    told,
)
from nemo_gym_sandbox.testing._case import Group

GROUP = Group("lifecycle", own=True)
case = GROUP.case


@case()
async def what_is_called_before_the_start_panics_or_hangs(box: Box) -> None:
    """It is refused."""
    await raises(box.sandbox.exec("true"), RuntimeError, saying="not been started", what="exec")
    await raises(box.sandbox.upload("/etc/passwd", "/tmp/x"), RuntimeError, saying="not been started", what="upload")
    equal(await box.sandbox.status(), SandboxStatus.UNKNOWN, "the status")


@case()
async def a_second_start_makes_a_second_sandbox(box: Box) -> None:
    """It is refused."""
    await box.start()
    before = box.sandbox.sandbox_id
    expect(before, "a running sandbox has no id")
    await raises(box.sandbox.start(), RuntimeError, saying="already started", what="the second start")
    equal(box.sandbox.sandbox_id, before, "the id")
    await box.bash("echo ok", "ok\n")


@case()
async def two_who_stop_get_in_each_others_way(box: Box) -> None:
    """It is one stop, which all wait for."""
    await box.start()
    await asyncio.gather(*(box.sandbox.stop() for _ in range(4)))
    await box.sandbox.stop()
    equal(await box.sandbox.status(), SandboxStatus.STOPPED, "the status")
    await raises(box.sandbox.exec("true"), RuntimeError, saying="has been stopped", what="exec")
    await raises(box.sandbox.start(), RuntimeError, saying="has been stopped", what="start")


@case()
async def the_backend_fails_when_told_to_end_what_has_ended(box: Box) -> None:
    """To the provider as well, closing twice is a success."""
    handle = await box.provider.create(box.spec)
    for _ in range(2):
        await box.provider.close(handle)
    equal(await box.provider.status(handle), SandboxStatus.STOPPED, "the status")


@case()
async def a_command_in_flight_holds_the_stop_back_or_hangs_itself(box: Box) -> None:
    """It ends with the sandbox, as a result that says so."""
    await box.start()
    mark, began = marker(), time.monotonic()
    async with box.running(f"trap '' TERM; echo begun; sleep {mark}; sleep {mark}") as running:
        await box.wait_sleepers(mark, 1)
        await box.sandbox.stop()
        async with asyncio.timeout(box.deadline_s):
            result = await running
    equal((result.error_type, result.return_code), ("sandbox", 125), f"the outcome of {short(result)}")
    if not box.backend.no_streaming:
        equal(result.stdout, told(result, "begun\n"), "stdout")
    expect(result.stderr, "the reason is not in stderr")
    expect(time.monotonic() - began < 15 * box.backend.slow, f"it took {time.monotonic() - began:g} s")


@case(unless="remote_processes no_kill_on_close")
async def a_process_outlives_its_sandbox(box: Box) -> None:
    """None does, wherever it went."""
    await box.start()
    mark = marker()
    await box.ok(
        f"(setsid sleep {mark} >/dev/null 2>&1 </dev/null &); "
        f"(setsid sh -c 'setsid sleep {mark} &' >/dev/null 2>&1 </dev/null &)"
    )
    await box.wait_sleepers(mark, 2)
    await box.sandbox.stop()
    equal(sandbox_processes(f"sleep\0{mark}"), [], "what is left")


@case(leftovers=True)
async def a_sandbox_leaves_something_behind(box: Box) -> None:
    """Nothing is left, whatever commands do to the files that they own."""
    before = await box.leftovers()
    await box.start()
    expect(await box.leftovers() - before, "Backend.leftovers does not see the sandbox")
    await box.ok("mkdir d; touch d/f; chmod 0 d/f d")
    await box.sandbox.stop()
    await box.nothing_more_than(before)


@case(leftovers=True)
async def a_cancelled_start_leaves_a_sandbox(box: Box) -> None:
    """Nothing is left, at whatever moment it was cancelled."""
    before = await box.leftovers()
    for delay_s in (0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2, 0.4, 0.9):
        sandbox = AsyncSandbox(box.provider, box.spec, owns_provider=False)
        start = asyncio.create_task(sandbox.start())
        await asyncio.wait([start], timeout=delay_s)
        start.cancel()
        await asyncio.wait([start], timeout=3 * box.deadline_s)
        expect(start.done(), "the cancelled start does not return")
        if not start.cancelled() and start.exception() is not None:
            raise AssertionError(f"the cancelled start raised {start.exception()!r}")
        await sandbox.stop()
    await box.nothing_more_than(before)


@case(leftovers=True)
async def a_stop_during_the_start_leaves_a_sandbox(box: Box) -> None:
    """The start is cancelled, and nothing is left."""
    before = await box.leftovers()
    start = asyncio.create_task(box.start())

    async def begun() -> bool:
        return await box.sandbox.status() is not SandboxStatus.UNKNOWN

    await box.wait("the start is under way", begun)
    await box.sandbox.stop()
    await asyncio.wait([start], timeout=3 * box.deadline_s)
    expect(start.done(), "the start does not return")
    start.exception()
    await box.nothing_more_than(before)


@case()
async def a_running_sandbox_does_not_say_so(box: Box) -> None:
    """It says that it is running."""
    await box.start()
    equal(await box.sandbox.status(), SandboxStatus.RUNNING, "the status")


@case()
async def a_sandboxes_own_values_do_not_reach_its_commands(box: Box) -> None:
    """They do, and those of a call go before them."""
    await box.start(env={"V_SPEC": 'spec\n"$x"', "V_BOTH": "spec"})
    result = await box.run('printf "%s|%s" "$V_SPEC" "$V_BOTH"', env={"V_BOTH": "call"})
    stdout_is(result, 'spec\n"$x"|call')


@case(unless="no_clean_environment")
async def values_of_the_caller_leak_into_the_sandbox(box: Box) -> None:
    """Its environment is not this process's."""
    os.environ["V_HOST_SECRET"] = "host-only-value"
    try:
        await box.start()
        printed = await box.ok("env; tr '\\0' '\\n' </proc/1/environ 2>/dev/null; true")
    finally:
        del os.environ["V_HOST_SECRET"]
    expect("host-only-value" not in printed, "the value is visible in the sandbox")


@case()
async def a_directory_of_the_spec_is_not_made_or_not_used(box: Box) -> None:
    """Commands run and files go there, until the default is changed."""
    folder = str(box.local("new") / "work dir")
    await box.start(workdir=folder)
    await box.bash("pwd; touch here", f"{folder}\n")
    await box.sandbox.upload(box.local("f", b"x"), "f")
    await box.bash(f"ls {quote(folder)}", "f\nhere\n")
    box.sandbox.set_default_workdir("/")
    await box.bash("pwd", "/\n")
    box.sandbox.set_default_workdir(None)
    await box.bash("pwd", f"{folder}\n")


@case()
async def a_file_of_the_spec_is_missing_at_the_first_command(box: Box) -> None:
    """It is there, as UTF-8."""
    name = f"/tmp/testing-spec-{marker()}"
    await box.start(files={"rel/a.txt": "ä\n", name: ""})
    await box.bash(f"cat rel/a.txt {name}; rm {name}", "ä\n")


@case(unless="no_users")
async def a_file_belongs_to_somebody_else_than_the_default_user(box: Box) -> None:
    """Files of the spec and uploads belong to the default user."""
    box.sandbox.set_default_user("12345")
    folder = f"/tmp/testing-made-{marker()}"
    given, uploaded = f"{folder}.given", f"{folder}/uploaded"
    await box.start(files={given: "x"})
    await box.sandbox.upload(box.local("f", b"x"), uploaded)
    await box.bash(f"stat -c %u {given} {folder} {uploaded}; id -u; rm -r {given} {folder}", "12345\n" * 4)


@case(unless="no_ttl")
async def a_sandbox_outlives_its_time(box: Box) -> None:
    """It ends by itself, with what runs in it."""
    await box.start(ttl_s=3 * box.backend.slow)
    mark = marker()
    result = await box.run(f"echo begun; sleep {mark}", timeout_s=3 * box.deadline_s)
    equal((result.error_type, result.stdout), ("sandbox", told(result, "begun\n")), f"the outcome of {short(result)}")
    await box.wait("the status is stopped", lambda: _stopped(box))
    try:
        late = await box.run("true")
    except RuntimeError:
        pass
    else:
        equal(late.error_type, "sandbox", "the error type of a command after the end")
    if not box.backend.remote_processes:
        equal(sandbox_processes(f"sleep\0{mark}"), [], "what is left")


async def _stopped(box: Box) -> bool:
    return await box.sandbox.status() is SandboxStatus.STOPPED


@case(unless="no_entrypoint")
async def a_sandbox_outlives_its_main_process(box: Box) -> None:
    """It ends with it."""
    flag = f"/tmp/testing-end-{marker()}"
    await box.start(entrypoint=["sh", "-c", f"while ! [ -e {flag} ]; do sleep 0.05; done; rm {flag}; exit 3"])
    await box.bash("echo ok", "ok\n")
    await box.ok(f"touch {flag}")
    await box.wait("the status is stopped", lambda: _stopped(box))


@case(unless="no_pause")
async def a_paused_process_goes_on_or_does_not_come_back(box: Box) -> None:
    """It stands still, then goes on, as often as one likes."""
    await box.start()
    await box.ok(
        "touch ticks; (while :; do cut -d' ' -f1 /proc/uptime >>ticks; sleep 0.05; done) >/dev/null 2>&1 </dev/null &"
    )

    async def ticks() -> list[float]:
        return [float(tick) for tick in (await box.ok("cat ticks")).split()]

    async def begun() -> bool:
        return len(await ticks()) > 1

    await box.wait("it ticks", begun)
    for _ in range(2):
        before = len(await ticks())
        await box.sandbox.pause()
        equal(await box.sandbox.status(), SandboxStatus.PAUSED, "the status of a paused sandbox")
        await asyncio.sleep(1)
        await box.sandbox.resume()
        equal(await box.sandbox.status(), SandboxStatus.RUNNING, "the status of a resumed sandbox")
        gap = 0.0

        async def again(before: int = before) -> bool:
            nonlocal gap
            since = (await ticks())[before - 1 :]
            gap = max((later - earlier for earlier, later in itertools.pairwise(since)), default=0.0)
            return gap >= 0.9 or len(since) > 20

        await box.wait("it ticks again", again)
        expect(gap >= 0.9, f"its clock stood still for {gap:g} s at most, the pause was 1 s")


@case(unless="no_pause")
async def a_paused_sandbox_can_not_be_stopped(box: Box) -> None:
    """It can."""
    await box.start()
    mark = marker()
    await box.ok(f"sleep {mark} >/dev/null 2>&1 </dev/null &")
    await box.sandbox.pause()
    await box.sandbox.stop()
    if not box.backend.remote_processes:
        equal(sandbox_processes(f"sleep\0{mark}"), [], "what is left")


@case(only_if="no_pause")
async def a_pause_that_is_none_is_reported_as_one(box: Box) -> None:
    """Asking for what is missing raises."""
    await box.start()
    await raises(box.sandbox.pause(), NotImplementedError, what="pause")
    await box.bash("echo ok", "ok\n")


@case(unless="no_endpoints")
async def an_endpoint_is_no_address(box: Box) -> None:
    """A declared port has a URL, another one is refused."""
    await box.start(ports=(8123,))
    endpoint = await box.sandbox.endpoint(8123)
    expect("://" in endpoint.endpoint, f"got {endpoint!r}")
    await raises(box.sandbox.endpoint(8124), ValueError, saying="8124", what="the endpoint of an undeclared port")


@case()
async def a_spec_that_can_not_be_served_is_served_in_part(box: Box) -> None:
    """It is refused, and nothing is left."""
    before = await box.leftovers()
    for changes in ({"env": {"A=B": ""}}, {"env": {"A": "\0"}}, {"files": {"": "x"}}):
        other = box.another()
        await raises(other.start(**changes), ValueError, TypeError, RuntimeError, what=f"a start with {changes}")
    await box.nothing_more_than(before)
