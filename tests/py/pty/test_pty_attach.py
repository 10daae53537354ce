"""Sessions that outlive their clients: attached to again from here and from other processes."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pty_help import PATIENCE_S, rest, until

from nemo_gym_sandbox import AsyncSandbox, SandboxPtyError, SandboxSpec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable


async def line(process: subprocess.Popen[str]) -> Any:
    """The next line of another process, as JSON."""
    assert process.stdout is not None
    text = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE_S)
    assert text, f"the other process ended with {process.wait(PATIENCE_S)}"
    return json.loads(text)


async def test_detach_and_attach_by_offset_give_every_byte_once(sandbox: AsyncSandbox) -> None:
    command = "stty -onlcr; i=0; while [ $i -lt 20000 ]; do echo n$i; i=$((i+1)); done; busybox usleep 300000; echo end"
    want = b"".join(b"n%d\n" % i for i in range(20000)) + b"end\n"
    async with await sandbox.pty.create(command) as session:
        got = await until(session, b"n500\n")
        second = await sandbox.pty.attach(session.session_id, since=len(got))
        assert second.replay_offset in (None, len(got))
        got += await second.read()
        await second.close()  # an attached one lives on
        third = await sandbox.pty.attach(session.session_id, since=len(got))
        got += await rest(third)
        assert got == want
        assert await third.wait_exit() == 0
        await third.close()
        fourth = await sandbox.pty.attach(session.session_id, since=len(want) - 4)
        assert (await rest(fourth), fourth.replay_offset) == (b"end\n", len(want) - 4)


async def test_detach_and_reattach_go_on_where_the_reading_stopped(sandbox: AsyncSandbox) -> None:
    command = "stty -onlcr; i=0; while [ $i -lt 300 ]; do echo n$i; busybox usleep 5000; i=$((i+1)); done"
    async with await sandbox.pty.create(command) as session:
        got = b""
        for stop in (10, 100, 200):
            got += await until(session, b"n%d\n" % stop)
            waiting = asyncio.create_task(session.read_stderr())
            await asyncio.sleep(0)
            await session.detach()
            await session.detach()
            with pytest.raises(SandboxPtyError, match="is detached; reattach it first"):
                await waiting
            for work in (session.read, session.read_stderr, lambda: session.write(b"x"), lambda: session.resize(9, 9)):
                with pytest.raises(SandboxPtyError, match="is detached"):
                    await work()
            assert not session.closed
            await session.reattach()
            await session.reattach()
        got += await rest(session)
        assert got == b"".join(b"n%d\n" % i for i in range(300))


async def test_a_session_that_was_taken_away_is_not_reattached(on_local: AsyncSandbox) -> None:
    owner = await on_local.pty.create("cat")
    second = await on_local.pty.attach(owner.session_id)
    with pytest.raises(SandboxPtyError, match="taken over"):
        await owner.wait_exit()
    with pytest.raises(SandboxPtyError, match="taken over"):
        await owner.reattach()
    await second.detach()
    await owner.close()
    for work in (second.reattach, second.wait_exit, second.read, second.reattach):
        with pytest.raises(SandboxPtyError, match="not found"):
            await asyncio.wait_for(work(), PATIENCE_S)
    assert second.closed
    await second.close()


async def test_output_beyond_what_is_retained_is_reported_and_passed(sandbox: AsyncSandbox) -> None:
    size = 6 << 20
    command = f"stty raw -echo; printf begin; read x; busybox head -c {size} /dev/zero; printf end; touch over; read x"
    async with await sandbox.pty.create(command, cwd="/tmp") as session:
        await until(session, b"begin")
        await session.write(b"go\n")
        await session.detach()
        over = "for i in $(seq 400); do [ -e over ] && exit; sleep 0.05; done; exit 1"
        assert (await sandbox.exec(over, cwd="/tmp")).return_code == 0
        await session.reattach()
        got, lost = bytearray(), ""
        while not got.endswith(b"end"):
            try:
                got += await session.read(timeout_s=PATIENCE_S)
            except SandboxPtyError as error:
                assert not lost
                lost = str(error)
        number = int(lost.split(" bytes of output")[0].split()[-1])
        assert len(got) + number == size + len("end")
        assert session.replay_offset is not None
        assert session.replay_offset > 0
        assert not session.closed


async def test_a_takeover_evicts_the_holder(sandbox: AsyncSandbox) -> None:
    first = await sandbox.pty.create()
    await until(first, b"# ")
    with pytest.raises(SandboxPtyError, match="already has an attached client"):
        await sandbox.pty.attach(first.session_id, takeover=False)
    reading = asyncio.create_task(rest(first))
    exiting = asyncio.create_task(first.wait_exit())
    second = await sandbox.pty.attach(first.session_id)
    with pytest.raises(SandboxPtyError, match="taken over"):
        await asyncio.wait_for(reading, PATIENCE_S)
    with pytest.raises(SandboxPtyError, match="taken over"):
        await asyncio.wait_for(exiting, PATIENCE_S)
    assert first.closed
    with pytest.raises(SandboxPtyError, match="taken over"):
        await first.read()
    with pytest.raises(SandboxPtyError, match="taken over"):
        await first.write(b"x")
    await second.write(b"echo se''cond\n")
    await until(second, b"second")
    await first.close()  # its owner
    await rest(second)
    assert await second.wait_exit(timeout_s=PATIENCE_S) > 128
    await second.close()


CLIENT = """
async def main():
    sandbox = await AsyncSandbox(provider, SandboxSpec(image=sys.argv[1] or None)).start()
    session = await sandbox.pty.create("stty -echo -onlcr; echo ready; i=0; while read line; do i=$((i+1)); echo $i-$line; done")
    got = await session.read()
    await session.write(b"one\\n")
    while b"1-one\\n" not in got:
        got += await session.read()
    print(json.dumps([await sandbox.serialize(), session.session_id, len(got)]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_session_survives_the_kill_of_its_client(
    client: Callable[..., subprocess.Popen[str]], backend: str
) -> None:
    other = client(CLIENT, "" if backend == "local" else "lab/busybox:1")
    descriptor, session_id, read = await line(other)
    other.kill()
    assert other.wait(PATIENCE_S) == -signal.SIGKILL
    sandbox = await AsyncSandbox.connect(descriptor, provider={backend: {}})
    try:
        async with await sandbox.pty.attach(session_id, since=read) as session:
            await session.write(b"two\n")
            assert await until(session, b"2-two\n") == b"2-two\n"
        async with await sandbox.pty.attach(session_id, since=0) as session:
            await session.write(b"three\n")
            assert await until(session, b"3-three\n") == b"ready\n1-one\n2-two\n3-three\n"
            assert session.replay_offset == 0
    finally:
        await sandbox.stop()


THIEF = """
async def main():
    sandbox = await AsyncSandbox.connect(json.loads(sys.argv[1]), provider=provider)
    session = await sandbox.pty.attach(sys.argv[2])
    await session.write(b"stolen\\n")
    got = b""
    while b"-stolen" not in got:
        got += await session.read()
    print(json.dumps(got.decode()), flush=True)
    sys.stdin.readline()
    await session.close()
    await sandbox.disconnect()

asyncio.run(main())
"""


async def test_another_process_takes_a_session_over_and_gives_it_back(
    client: Callable[..., subprocess.Popen[str]], backend: str
) -> None:
    async with AsyncSandbox(
        {backend: {}}, SandboxSpec(image=None if backend == "local" else "lab/busybox:1")
    ) as sandbox:
        await sandbox.start()
        session = await sandbox.pty.create("stty -echo; while read line; do echo got-$line; done")
        await session.write(b"mine\n")
        await until(session, b"got-mine")
        thief = client(THIEF, json.dumps(await sandbox.serialize()), session.session_id)
        with pytest.raises(SandboxPtyError, match="taken over"):
            await rest(session)
        assert "got-mine" in await line(thief)
        again = await sandbox.pty.attach(session.session_id)
        await again.write(b"back\n")
        assert b"got-stolen" in await until(again, b"got-back")
        assert thief.stdin is not None
        thief.stdin.write("\n")
        thief.stdin.flush()
        await asyncio.to_thread(thief.wait, PATIENCE_S)
        await again.write(b"and on\n")
        await until(again, b"got-and on")


async def test_a_detached_command_is_watched_from_time_to_time(sandbox: AsyncSandbox) -> None:
    session = await sandbox.pty.create()
    command = "i=0; while [ $i -lt 30 ]; do echo tick $i; sleep 0.1; i=$((i+1)); done; (exit 3)"
    result = await sandbox.pty.exec(command, session=session, detach=True, poll_interval_s=0.5)
    assert (result.return_code, result.stderr, result.error_type) == (3, None, None)
    assert (result.stdout or "").replace("\r", "") == "".join(f"tick {i}\n" for i in range(30))
    result = await sandbox.pty.exec("echo still attached", session=session)
    assert (result.stdout or "").strip() == "still attached"
    timed_out = await sandbox.pty.exec("sleep 100", session=session, detach=True, poll_interval_s=0.2, timeout_s=2)
    assert (timed_out.return_code, timed_out.error_type) == (125, "timeout")
    assert not session.closed
    await session.write(b"\x03")
    await until(session, b"# ")
    await session.close()


async def test_a_detached_command_in_pipe_mode_gives_both_outputs(sandbox: AsyncSandbox) -> None:
    result = await sandbox.pty.exec(
        "echo out; echo err >&2; sleep 1.5; echo late", pty=False, detach=True, poll_interval_s=0.2
    )
    assert result.return_code == 0
    assert sorted((result.stdout or "").split()) == ["err", "late", "out"]


async def test_a_detached_command_that_prints_more_than_is_retained_is_an_error(sandbox: AsyncSandbox) -> None:
    command = "sleep 1.5; busybox head -c 4000000 /dev/zero; sleep 1"
    with pytest.raises(SandboxPtyError, match=r"\d+ bytes of output .* were lost"):
        await sandbox.pty.exec(command, detach=True, poll_interval_s=3)


async def test_a_detached_command_that_ends_its_shell_is_an_error(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxPtyError, match="ended before the command finished"):
        await sandbox.pty.exec("sleep 1.5; exit 3", detach=True, poll_interval_s=0.3)


async def test_a_shell_that_ends_just_before_it_would_be_left_alone(on_local: AsyncSandbox) -> None:
    session: Any = await on_local.pty.create()
    detach = session.detach

    async def late() -> None:
        await session.wait_exit()
        await detach()

    session.detach = late
    with pytest.raises(SandboxPtyError, match="ended before the command finished"):
        await session.run_detached("sleep 1.2; exit 3")
    await session.close()
