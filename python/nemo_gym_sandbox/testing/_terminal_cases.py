"""Interactive sessions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox.providers.base import SandboxPtyError
from nemo_gym_sandbox.testing._box import Box, code_is, equal, expect, marker, raises, short, timed_out
from nemo_gym_sandbox.testing._case import Group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nemo_gym_sandbox.providers.base import SandboxPtySession

GROUP = Group("terminals")
case = GROUP.case

_COUNT = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo n$i; done"
_COUNTED = "".join(f"n{number}\n" for number in range(1, 3001))


@asynccontextmanager
async def _session(box: Box, command: str | None = None, **options: Any) -> AsyncGenerator[SandboxPtySession]:
    session = await box.sandbox.pty.create(command, **options)
    try:
        yield session
    finally:
        await session.close()


async def _seen(box: Box, session: SandboxPtySession, want: str) -> str:
    """Read until a text was seen."""
    got = b""
    while want.encode() not in got:
        piece = await session.read(box.deadline_s)
        expect(piece, f"the output ended; {want!r} was not seen in {short(got)}")
        got += piece
    return got.decode()


async def _drained(box: Box, session: SandboxPtySession) -> tuple[str, int]:
    """Read to the end; the exit code too."""
    got = b""
    while piece := await session.read(box.deadline_s):
        got += piece
    return got.decode("utf-8", "replace"), await session.wait_exit(box.deadline_s)


async def _shell_prints(box: Box, session: SandboxPtySession, command: str, want: str, code: int = 0) -> None:
    result = await box.sandbox.pty.exec(command, session=session, timeout_s=box.deadline_s)
    code_is(result, code)
    equal((result.stdout or "").replace("\r\n", "\n"), want, f"what {short(command)} printed")


@case(unless="no_terminals")
async def echo_and_prompt_pass_for_output(box: Box) -> None:
    """Only what the command printed is its output; the shell keeps its state."""
    async with _session(box) as session:
        await _shell_prints(box, session, "echo one; echo two", "one\ntwo\n")
        await _shell_prints(box, session, "cd /; X=5", "")
        await _shell_prints(box, session, "pwd; echo $X; (exit 7)", "/\n5\n", 7)


@case(unless="no_terminals")
async def output_that_looks_like_a_marker_ends_the_command(box: Box) -> None:
    """It is output."""
    async with _session(box) as session:
        await _shell_prints(
            box,
            session,
            "printf 'NGSdeadbeef0123:0\\n'; printf 'x:9\\n'; (exit 3)",
            "NGSdeadbeef0123:0\nx:9\n",
            3,
        )
        await _shell_prints(box, session, "echo a\necho b\n(exit 2)", "a\nb\n", 2)


@case(unless="no_terminals")
async def a_program_starts_in_another_size(box: Box) -> None:
    """It has the size that was asked for, at the latest when it is told of a change."""
    command = "while [ \"$(stty size)\" != '50 121' ]; do sleep 0.05; done; echo right"
    async with _session(box, command, rows=50, cols=121) as session:
        equal(await _drained(box, session), ("right\r\n", 0), "what was printed")
    async with _session(box, "while [ \"$(stty size)\" != '33 44' ]; do sleep 0.05; done; echo right") as session:
        await session.resize(33, 44)
        equal(await _drained(box, session), ("right\r\n", 0), "what was printed after a resize")


@case(unless="no_terminals")
async def a_session_ignores_its_directory_and_variables(box: Box) -> None:
    """It has what was asked for, and the sandbox's directory when nothing was."""
    async with _session(box, "pwd; echo $V_PTY", cwd="/tmp", env={"V_PTY": "a  b"}) as session:
        equal((await _drained(box, session))[0], "/tmp\r\na b\r\n", "what was printed")
    here = (await box.ok("pwd")).strip()
    async with _session(box, "pwd") as session:
        equal((await _drained(box, session))[0], f"{here}\r\n", "the directory")


@case(unless="no_terminals")
async def an_interrupt_does_not_reach_the_foreground_or_ends_the_shell(box: Box) -> None:
    """The typed character ends what runs in front."""
    mark = marker()
    async with _session(box) as session:
        await session.write(f"sleep {mark}\n".encode())
        await box.wait_sleepers(mark, 1)
        await session.write(b"\x03")
        await box.wait_sleepers(mark, 0)
        await session.write(b"echo al''ive\n")
        await _seen(box, session, "alive")


@case(unless="no_terminals no_signal_codes")
async def a_signal_does_not_reach_the_process(box: Box) -> None:
    """It does, by name."""
    for name, want in {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": 137}.items():
        async with _session(box, "echo go; exec sleep 1000") as session:
            await _seen(box, session, "go")
            await session.send_signal(name)
            code = (await _drained(box, session))[1]
            if code >= 0 or not box.backend.no_terminal_signal_codes:
                equal(code, want, f"the exit code after {name}")


@case(unless="no_terminals")
async def a_long_line_is_cut(box: Box) -> None:
    """A command may be longer than the line that a terminal takes."""
    async with _session(box) as session:
        await _shell_prints(box, session, f"V={'x' * 6000}; echo ${{#V}}", "6000\n")
        await _shell_prints(box, session, "echo ☕ after", "☕ after\n")


@case(unless="no_terminals")
async def stdout_and_stderr_mix_without_a_terminal(box: Box) -> None:
    """They are apart in pipe mode."""
    async with _session(box, "echo out; echo err >&2; exit 4", pty=False) as session:
        equal(await _drained(box, session), ("out\n", 4), "stdout and the exit code")
        equal(session.mode, "pipe", "the mode")
        equal(await session.read_stderr(box.deadline_s), b"err\n", "stderr")
    result = await box.sandbox.pty.exec("echo out; echo err >&2; exit 4", pty=False, timeout_s=box.deadline_s)
    equal((result.stdout, result.stderr, result.return_code), ("out\n", "err\n", 4), "the result")


@case(unless="no_terminals")
async def the_last_output_is_lost(box: Box) -> None:
    """All of it is read before the end."""
    for pty in (True, False):
        for _ in range(4):
            async with _session(box, "head -c 200000 /dev/zero | tr '\\0' z; printf END; exit 3", pty=pty) as session:
                equal(await _drained(box, session), ("z" * 200_000 + "END", 3), "what was read")


@case(unless="no_terminals no_tree_kill")
async def a_closed_session_leaves_processes(box: Box) -> None:
    """What was opened here ends with the session."""
    mark = marker()
    async with _session(box, f"sleep {mark} & setsid sleep {mark} & sleep {mark}") as session:
        await box.wait_sleepers(mark, 3)
        await session.close()
        expect(session.closed, "a closed session does not say so")
    await box.wait_sleepers(mark, 0)


@case(unless="no_terminals")
async def a_late_command_of_a_session_is_reported_as_done(box: Box) -> None:
    """A timeout is a result, in a session of its own and in one that was given."""
    mark = marker()
    timed_out(await box.sandbox.pty.exec(f"sleep {mark}", timeout_s=0.5, cwd="/"))
    await box.wait_sleepers(mark, 0)
    async with _session(box) as session:
        timed_out(await box.sandbox.pty.exec(f"sleep {mark}", session=session, timeout_s=0.5))


@case(unless="no_terminals no_attach")
async def another_who_attaches_misses_output_or_gets_it_twice(box: Box) -> None:
    """From a given byte on they get the rest, and the first holder's session fails."""
    async with _session(box, f"stty -onlcr -echo; {_COUNT}; read x; echo end") as session:
        got = await _seen(box, session, "n500\n")
        other = await box.sandbox.pty.attach(session.session_id, since=len(got))
        try:
            await raises(_to_the_end(box, session), SandboxPtyError, what="the session that lost its holder")
            await other.write(b"\n")
            rest, _ = await _drained(box, other)
        finally:
            await other.close()
    equal(got + rest, f"{_COUNTED}end\n", "what both read")


async def _to_the_end(box: Box, session: SandboxPtySession) -> None:
    while await session.read(box.deadline_s):
        pass


@case(unless="no_terminals no_attach")
async def two_hold_one_session(box: Box) -> None:
    """A held session refuses whoever does not take over; one that does not exist refuses everybody."""
    async with _session(box) as session:
        await raises(
            box.sandbox.pty.attach(session.session_id, takeover=False), SandboxPtyError, what="attaching beside"
        )
        await session.write(b"echo st''ill\n")
        await _seen(box, session, "still")
    await raises(box.sandbox.pty.attach("no-such-session"), SandboxPtyError, what="attaching to nothing")


@case(unless="no_terminals no_detached")
async def a_command_that_runs_detached_loses_output(box: Box) -> None:
    """It is looked at now and then, and all that it printed is in the result."""
    command = "i=0; while [ $i -lt 5 ]; do i=$((i+1)); echo n$i; sleep 0.3; done; (exit 9)"
    result = await box.sandbox.pty.exec(command, detach=True, poll_interval_s=0.2, timeout_s=box.deadline_s)
    code_is(result, 9)
    equal((result.stdout or "").replace("\r\n", "\n"), "".join(f"n{number}\n" for number in range(1, 6)), "stdout")


@case(unless="no_terminals")
async def a_read_that_times_out_loses_output(box: Box) -> None:
    """The next read gets it."""
    async with _session(box, "read x; echo got $x") as session:
        await raises(session.read(0.2), TimeoutError, what="a read with nothing to read")
        await session.write(b"it\n")
        await _seen(box, session, "got it")


@case(unless="no_terminals")
async def a_wait_that_is_cancelled_ends_the_session(box: Box) -> None:
    """It goes on."""
    async with _session(box, "read x; echo got $x; exit 3") as session:
        for work in (session.read, session.wait_exit):
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=box.deadline_s)
            expect(task.cancelled(), "the cancellation was swallowed")
        await session.write(b"it\n")
        text, code = await _drained(box, session)
        expect(text.endswith("got it\r\n") and code == 3, f"read {short(text)}, exit code {code}")


@case(only_if="no_terminals")
async def a_terminal_that_is_none_is_opened(box: Box) -> None:
    """Asking for what is missing raises."""
    error = await raises(box.sandbox.pty.create(), NotImplementedError, what="pty.create()")
    expect(box.sandbox.provider_name in str(error), f"{error!r} does not name the provider")
