"""Terminal sessions of real sandboxes through Python: what is read, written and waited for."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import inspect
import signal
import time
from typing import TYPE_CHECKING

import pytest
from pty_help import PATIENCE_S, reached, rest, until

from nemo_gym_sandbox import (
    AsyncSandbox,
    Sandbox,
    SandboxPtyError,
    SandboxPtySession,
    SandboxSpec,
    SandboxStatus,
    SupportsSandboxPty,
    SupportsSandboxPtyAttach,
)
from nemo_gym_sandbox._core.lib import library

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_shell_lives_from_create_to_exit(sandbox: AsyncSandbox) -> None:
    session = await sandbox.pty.create()
    assert isinstance(session, SandboxPtySession)
    assert (session.mode, session.closed, session.replay_offset) == ("pty", False, None)
    assert session.session_id
    await session.write(b"echo al''ive; tty\n")
    assert b"/dev/pts/" in await until(session, b"/dev/pts/")
    await session.write(b"exit 7\n")
    assert await session.wait_exit(timeout_s=PATIENCE_S) == 7
    assert session.closed is True
    await rest(session)
    assert [await session.read(), await session.read(), await session.read_stderr()] == [b"", b"", b""]
    assert await session.wait_exit() == 7
    with pytest.raises(SandboxPtyError, match="is closed: its process has exited with code 7"):
        await session.write(b"x")
    await session.resize(10, 10)  # who resizes can't always know
    await session.close()
    await session.close()
    with pytest.raises(SandboxPtyError, match="is closed"):
        await session.resize(10, 10)
    with pytest.raises(SandboxPtyError, match="is closed"):
        await session.read()
    assert await session.wait_exit() == 7


async def test_what_a_session_runs_with(sandbox: AsyncSandbox) -> None:
    sandbox.set_default_workdir("/tmp")
    command = 'stty size; pwd; echo "$A-$TERM"; test -t 0 && test -t 2 && echo terminal'
    async with await sandbox.pty.create(command, env={"A": "b c", "TERM": "vt100"}, rows=31, cols=117) as session:
        lines = (await rest(session)).replace(b"\r\n", b"\n").splitlines()
        assert lines == [b"31 117", b"/tmp", b"b c-vt100", b"terminal"]
    assert session.closed


async def test_pipes_keep_stderr_apart(sandbox: AsyncSandbox) -> None:
    command = "cat; echo err >&2; test -t 0 || echo no terminal; exit 4"
    async with await sandbox.pty.create(command, pty=False) as session:
        assert session.mode == "pipe"
        await session.write(b"\x00\x03\x04\xff to cat\n")
        await until(session, b"\x00\x03\x04\xff to cat\n")
        await session.send_signal("SIGTERM")
        assert await session.wait_exit(timeout_s=PATIENCE_S) == 128 + 15
    async with await sandbox.pty.create("echo err >&2; echo out; exit 4", pty=False) as session:
        assert await rest(session) == b"out\n"
        assert (await session.read_stderr(), await session.read_stderr()) == (b"err\n", b"")
        assert await session.wait_exit() == 4


async def test_the_tail_before_an_exit_is_read(sandbox: AsyncSandbox) -> None:
    for _ in range(5):
        command = "busybox head -c 300000 /dev/zero | busybox tr '\\0' z; printf END; exit 3"
        async with await sandbox.pty.create(command) as session:
            got = await rest(session)
            assert (len(got), got[-3:], await session.wait_exit()) == (300_003, b"END", 3)


async def test_ctrl_c_ends_the_command_and_not_the_shell(sandbox: AsyncSandbox) -> None:
    async with await sandbox.pty.create() as session:
        await session.write(b"sh -c 'echo st\"\"arted; exec sleep 1000'\n")
        await until(session, b"started")
        begin = time.monotonic()
        await session.write(b"\x03")
        await until(session, b"# ")  # shells may drop what is typed before their prompt
        await session.write(b"echo al''ive $?\n")
        await until(session, b"alive 130")
        assert time.monotonic() - begin < 5


async def test_a_large_paste_arrives_unchanged_and_nobody_waits_for_a_reader(sandbox: AsyncSandbox) -> None:
    block = bytes(range(256)) * 4096
    async with await sandbox.pty.create("stty raw -echo; printf ready; busybox sha256sum", pty=True) as session:
        await until(session, b"ready")
        size = 0
        for _ in range(3):
            await asyncio.wait_for(session.write(block), PATIENCE_S)
            size += len(block)
        await session.send_signal("SIGKILL")
        assert await session.wait_exit(timeout_s=PATIENCE_S) == 137
    total = 3 * len(block)
    command = f"stty raw -echo; printf ready; busybox head -c {total} | busybox tee /dev/stderr | busybox sha256sum; sleep 0.1"
    async with await sandbox.pty.create(command) as session:
        await until(session, b"ready")
        for _ in range(3):  # what comes back is not read meanwhile
            await asyncio.wait_for(session.write(block), PATIENCE_S)
        assert await session.wait_exit(timeout_s=PATIENCE_S) == 0
        got = await rest(session)
        digest = hashlib.sha256(block * 3).hexdigest().encode()
        assert digest in got
        assert len(got) - got.count(b"\n") >= total - 3 * 4096 * 1


async def test_many_writes_and_resizes_at_once_lose_nothing_and_keep_their_order(sandbox: AsyncSandbox) -> None:
    words = [b"%05d|" % i for i in range(2000)]
    size = sum(map(len, words))
    command = f"stty raw -echo; printf ready; busybox dd bs=1 count={size} 2>/dev/null > got; busybox dd bs=1 count=1 2>/dev/null; stty size; cat got"
    async with await sandbox.pty.create(command) as session:
        await until(session, b"ready")
        jobs = [session.write(word) for word in words]
        jobs[500:500] = [session.resize(20 + i, 80) for i in range(1, 21)]
        await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE_S)
        await session.write(b"!")
        assert await rest(session) == b"!40 80\n" + b"".join(words)


async def test_parts_of_large_writes_do_not_mix(on_local: AsyncSandbox) -> None:
    pieces = [bytes([65 + i]) * 700_001 for i in range(4)]
    total = sum(map(len, pieces))
    command = f"stty raw -echo; printf ready; busybox head -c {total} | busybox fold -w 1 | busybox uniq -c"
    async with await on_local.pty.create(command) as session:
        await until(session, b"ready")
        await asyncio.wait_for(asyncio.gather(*map(session.write, pieces)), PATIENCE_S)
        assert (await rest(session)).split() == [b"700001", b"A", b"700001", b"B", b"700001", b"C", b"700001", b"D"]


async def test_timeouts_and_cancellations_lose_nothing(on_local: AsyncSandbox) -> None:
    lines = 3000
    command = f"stty -onlcr; i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done"
    async with await on_local.pty.create(command) as session:
        got, empty = b"", 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                task = asyncio.create_task(session.read(timeout_s=0.0004))
                if empty % 2:
                    await asyncio.sleep(0)
                    task.cancel()
                await asyncio.wait([task])
                if task.cancelled() or isinstance(task.exception(), TimeoutError):
                    empty += 1
                    continue
                chunk = task.result()
                if not chunk:
                    break
                got += chunk
                empty += 1
        assert got == b"".join(b"%d\n" % i for i in range(lines))
        assert empty > 10


async def test_asking_a_silent_session_leaves_nothing_behind(on_local: AsyncSandbox) -> None:
    def futures() -> int:
        gc.collect()
        return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())

    async with await on_local.pty.create("read x") as session:
        before = futures()
        for _ in range(200):
            with pytest.raises(TimeoutError):
                await session.read(timeout_s=0.0001)
        assert futures() < before + 20


async def test_a_read_that_waits_ends_with_the_session(on_local: AsyncSandbox) -> None:
    session = await on_local.pty.create("stty -echo; cat")
    with pytest.raises(TimeoutError):
        await session.read(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        await session.read_stderr(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        await session.wait_exit(timeout_s=0.05)
    reads = [asyncio.create_task(work) for work in (session.read(), session.read_stderr(), session.wait_exit())]
    await asyncio.sleep(0)
    await session.close()
    for read in reads:
        with pytest.raises(SandboxPtyError, match="closed"):
            await asyncio.wait_for(read, PATIENCE_S)
    with pytest.raises(SandboxPtyError, match="closed"):
        await session.detach()
    with pytest.raises(SandboxPtyError, match="closed"):
        await session.reattach()


async def test_closing_ends_everything_in_the_session(sandbox: AsyncSandbox) -> None:
    session = await sandbox.pty.create("(sleep 4711 &); sleep 4711")
    await session.close()
    gone = "for i in $(seq 100); do ps -o args 2>/dev/null | grep -q '[s]leep 4711' || exit 0; sleep 0.05; done; exit 1"
    assert (await sandbox.exec(gone)).return_code == 0


async def test_a_cancelled_create_leaves_no_session(on_local: AsyncSandbox) -> None:
    await on_local.exec("true")
    for wait in (0, 0.001, 0.003, 0.01, 0.03):
        task = asyncio.create_task(on_local.pty.create("sleep 4712"))
        await asyncio.sleep(wait)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().close()
    gone = "for i in $(seq 100); do ps -o args 2>/dev/null | grep -q '[s]leep 4712' || exit 0; sleep 0.05; done; exit 1"
    assert (await on_local.exec(gone)).return_code == 0
    assert library().stats()["terminals"] == 0


async def test_wrong_arguments_are_named(sandbox: AsyncSandbox) -> None:
    with pytest.raises(ValueError, match="rows and cols"):
        await sandbox.pty.create(rows=0, cols=80)
    with pytest.raises(TypeError, match="user must be"):
        await sandbox.pty.create(user=True)
    with pytest.raises(TypeError, match="environment variables are str to str"):
        await sandbox.pty.create(env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(SandboxPtyError, match="not found"):
        await sandbox.pty.attach("00000000-0000-4000-8000-000000000000")
    async with await sandbox.pty.create() as session:
        with pytest.raises(ValueError, match=r"supports only the signals SIG.*not .SIGUSR1."):
            await session.send_signal("SIGUSR1")
        with pytest.raises(ValueError, match=r"supports only the signals SIG.*not .*15"):
            await session.send_signal(signal.SIGTERM)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="between 1 and 65535"):
            await session.resize(0, 1)
        with pytest.raises(TypeError, match="takes bytes, not str"):
            await session.write("text")  # type: ignore[arg-type]
        assert not session.closed


async def test_patience_is_a_number(on_local: AsyncSandbox) -> None:
    async with await on_local.pty.create("sleep 0.2; echo x; sleep 0.2") as session:
        for wait in (session.read, session.read_stderr, session.wait_exit):
            with pytest.raises(ValueError, match="not nan"):
                await wait(timeout_s=float("nan"))
        assert await session.read(timeout_s=float("inf")) == b"x\r\n"
        assert await session.wait_exit(timeout_s=10**400) == 0


async def test_docker_in_engine_mode_says_why_it_has_no_sessions() -> None:
    config = {"docker": {"exec": {"mode": "engine"}}}
    async with AsyncSandbox(config, SandboxSpec(image="lab/busybox:1")) as sandbox:
        await sandbox.start()
        with pytest.raises(NotImplementedError, match=r"need the agent .*exec\.mode"):
            await sandbox.pty.create()
        with pytest.raises(NotImplementedError, match=r"need the agent .*exec\.mode"):
            await sandbox.pty.attach("x")


async def test_the_providers_have_the_capability_as_it_was_agreed(sandbox: AsyncSandbox) -> None:
    assert isinstance(sandbox.provider, SupportsSandboxPty)
    assert isinstance(sandbox.provider, SupportsSandboxPtyAttach)
    for protocol, name in ((SupportsSandboxPty, "create_pty"), (SupportsSandboxPtyAttach, "attach_pty")):
        agreed = inspect.signature(getattr(protocol, name))
        ours = inspect.signature(getattr(type(sandbox.provider), name))
        assert list(agreed.parameters.values()) == list(ours.parameters.values())


async def test_a_stop_ends_the_sessions_with_the_reason(backend: str) -> None:
    sandbox = AsyncSandbox({backend: {}}, SandboxSpec(image=None if backend == "local" else "lab/busybox:1"))
    await sandbox.start()
    session = await sandbox.pty.create()
    await until(session, b"# ")
    reading = asyncio.create_task(rest(session))
    await asyncio.sleep(0)
    await sandbox.stop()
    with pytest.raises(SandboxPtyError, match=r"stopped|ended"):
        await reading
    assert session.closed
    with pytest.raises(SandboxPtyError):
        await session.write(b"x")
    await session.close()


async def test_a_pause_detaches_and_a_resume_attaches_again(sandbox: AsyncSandbox) -> None:
    count = "stty -onlcr -echo; i=0; while [ $i -lt 400 ]; do echo n$i; i=$((i+1)); busybox usleep 2000; done; read x; echo got-$x"
    async with await sandbox.pty.create(count) as session:
        got = await until(session, b"n20\n")
        reading = asyncio.create_task(until(session, b"n399\n"))
        await sandbox.pause()
        assert await sandbox.status() == SandboxStatus.PAUSED
        assert not session.closed
        await session.write(b"typed\n")  # waits for the return
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), 0.3)
        await sandbox.resume()
        got += await reading
        got += await rest(session)
        assert got == b"".join(b"n%d\n" % i for i in range(400)) + b"got-typed\n"


async def test_a_container_that_stands_still_is_not_waited_for() -> None:
    async with AsyncSandbox({"docker": {}}, SandboxSpec(image="lab/busybox:1")) as sandbox:
        await sandbox.start()
        session = await sandbox.pty.create()
        await sandbox.pause()
        for call in (sandbox.pty.create, lambda: sandbox.pty.attach(session.session_id), session.close):
            with pytest.raises(SandboxPtyError, match="the container is paused"):
                await asyncio.wait_for(call(), 8)
        await sandbox.resume()
        async with await sandbox.pty.create() as other:
            assert (await sandbox.pty.exec("echo alive", session=other)).stdout == "alive\r\n"


async def test_sessions_hold_no_more_than_they_must(on_local: AsyncSandbox) -> None:
    before = library().stats()
    sessions = await asyncio.gather(*(on_local.pty.create("stty -echo; cat") for _ in range(20)))
    assert library().stats()["terminals"] == before["terminals"] + 20
    await asyncio.gather(*(session.close() for session in sessions[:10]))
    ids = [session.session_id for session in sessions[10:]]
    del sessions
    gc.collect()  # dropped without a close: they live on in the sandbox
    again = await asyncio.gather(*(on_local.pty.attach(number) for number in ids))
    await again[0].write(b"still here\n")
    await until(again[0], b"still here")
    await asyncio.gather(*(session.close() for session in again))
    await reached(lambda: all(library().stats()[what] <= before[what] for what in ("terminals", "streams")))


async def test_an_unread_session_holds_its_process_back(on_local: AsyncSandbox) -> None:
    count = "i=0; while :; do printf %1000d $i; i=$((i+1)); echo >> printed; done"

    async def printed() -> int:
        return int((await on_local.exec("wc -l < printed")).stdout or 0)

    async with await on_local.pty.create(count, cwd="/tmp") as session:
        on_local.set_default_workdir("/tmp")
        await session.read()
        before = -1
        while before < (now := await printed()):
            before = now
            await asyncio.sleep(0.3)
        assert 100 < now < 5000
        for _ in range(100):
            await session.read()
        await until(session, b" %d" % (now + 300))


def test_a_sandbox_without_a_loop_has_sessions_too(backend: str, tmp_path: Path) -> None:
    with Sandbox({backend: {}}, SandboxSpec(image=None if backend == "local" else "lab/busybox:1")) as sandbox:
        sandbox.start()
        with sandbox.pty.create() as session:
            session.write(b"echo sy''nc\n")
            got = b""
            while b"sync" not in got:
                got += session.read(timeout_s=PATIENCE_S)
            assert sandbox.pty.exec("echo in it; exit_code() { return 3; }; exit_code").return_code == 3
            output, code = session.run_detached("echo away; sleep 1.2; echo back", poll_interval_s=0.2)
            assert (output.replace(b"\r\n", b"\n"), code) == (b"away\nback\n", 0)
            session.write(b"exit 9\n")
            assert session.wait_exit(timeout_s=PATIENCE_S) == 9


def test_a_session_whose_loop_is_closed_is_refused_and_keeps_nobody_waiting() -> None:
    sandbox = AsyncSandbox({"local": {}}, SandboxSpec())

    async def begin() -> list[SandboxPtySession]:
        await sandbox.start()
        return [await sandbox.pty.create(), await sandbox.pty.create("cat")]

    async def go_on(shell: SandboxPtySession, other: SandboxPtySession) -> None:
        calls = (shell.read, shell.wait_exit, lambda: shell.write(b"x"), lambda: shell.send_signal("SIGINT"))
        for call in (*calls, lambda: shell.resize(9, 9), shell.detach):  # type: ignore[attr-defined]
            with pytest.raises(SandboxPtyError, match="belongs to another event loop"):
                await asyncio.wait_for(call(), PATIENCE_S)
        assert shell.closed
        await asyncio.wait_for(other.close(), PATIENCE_S)
        await asyncio.wait_for(other.close(), PATIENCE_S)
        assert (await sandbox.pty.exec("echo alive")).stdout == "alive\r\n"  # not in the old shell
        async with await sandbox.pty.attach(shell.session_id) as again:
            await again.write(b"echo st''ill there\n")
            await until(again, b"still there")
        await shell.close()
        await sandbox.stop()

    asyncio.run(go_on(*asyncio.run(begin())))


async def test_a_session_of_another_thread_s_loop_is_refused(on_local: AsyncSandbox) -> None:
    async with await on_local.pty.create("cat") as session:
        for call in (session.read, session.wait_exit, session.close):
            with pytest.raises(SandboxPtyError, match="belongs to another event loop"):
                await asyncio.to_thread(lambda call=call: asyncio.run(call()))
        assert not session.closed
        await session.write(b"mine\n")
        await until(session, b"mine")


def test_sessions_of_a_sandbox_that_was_stopped_can_be_closed() -> None:
    with Sandbox({"local": {}}, SandboxSpec()) as sandbox:
        sandbox.start()
        with sandbox.pty.create("cat") as session:
            assert not session.closed
            sandbox.stop()
            assert session.closed
            with pytest.raises(SandboxPtyError, match="sync loop is closed"):
                session.read()
        session.close()
