"""``sandbox.pty`` over scripted sessions: which session is used, what is typed, how it is read, and budgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from api_doubles import MemoryProvider, until
from api_terminals import DetachableShell, ScriptedShell, Session, TerminalProvider

from nemo_gym_sandbox import AsyncSandbox, SandboxExecResult, SandboxPtyError, SandboxPtySpec, SandboxSpec


async def box(make: Any = ScriptedShell, **spec: Any) -> tuple[AsyncSandbox, TerminalProvider]:
    provider = TerminalProvider(make)
    return await AsyncSandbox(provider, SandboxSpec(**spec)).start(), provider


# ---- create and attach


async def test_the_capability_is_checked_before_the_start():
    plain = AsyncSandbox(MemoryProvider(), SandboxSpec())
    with pytest.raises(NotImplementedError, match=r"'memory' does not support PTY sessions; use sandbox.exec\(\)"):
        await plain.pty.create()
    with pytest.raises(NotImplementedError, match="does not support re-attaching PTY sessions"):
        await plain.pty.attach("x")
    able = AsyncSandbox(TerminalProvider(), SandboxSpec())
    with pytest.raises(RuntimeError, match="has not been started"):
        await able.pty.create()
    with pytest.raises(RuntimeError, match="has not been started"):
        await able.pty.attach("x")


async def test_create_builds_a_spec_with_the_sandboxs_defaults():
    sandbox, provider = await box(workdir="/w")
    sandbox.set_default_user("agent")
    session = await sandbox.pty.create()
    assert session is provider.sessions[0]
    assert provider.sessions[0].spec == SandboxPtySpec(None, "/w", None, 24, 80, "agent", True)
    await sandbox.pty.create("top", cwd="/c", env={"K": "v"}, rows=1, cols=2, user=0, pty=False)
    assert provider.sessions[1].spec == SandboxPtySpec("top", "/c", {"K": "v"}, 1, 2, 0, False)


async def test_attach_passes_its_arguments():
    sandbox, provider = await box()
    await sandbox.pty.attach("a")
    await sandbox.pty.attach("b", takeover=False, since=5)
    assert provider.attaches == [("a", True, None), ("b", False, 5)]


# ---- which session


async def test_the_oldest_live_shell_is_reused():
    sandbox, provider = await box()
    with_command = await sandbox.pty.create("python")
    attached = await sandbox.pty.attach("x")
    first = await sandbox.pty.create()
    second = await sandbox.pty.create()
    await sandbox.pty.exec("one")
    await sandbox.pty.exec("two")
    assert len(first.writes) == 2
    assert not (second.writes or with_command.writes or attached.writes)
    assert not first.closed
    await first.close()
    await sandbox.pty.exec("three")
    assert len(second.writes) == 1
    assert len(provider.sessions) == 3


class Finished(Session):
    """A command session that has printed and ended already."""

    def __init__(self, spec: SandboxPtySpec) -> None:
        super().__init__(spec)
        self.out.put_nowait(b"caf\xc3")
        self.out.put_nowait(b"\xa9\xff")
        self.err.put_nowait(b"warned")
        self.end(3)


@pytest.mark.parametrize(
    "shaping", [{"cwd": "/"}, {"env": {}}, {"user": 0}, {"rows": 25}, {"cols": 81}, {"pty": False}], ids=str
)
async def test_shaping_arguments_open_a_private_session(shaping: dict[str, Any]):
    sandbox, provider = await box(lambda spec: Finished(spec) if spec.command else ScriptedShell(spec))
    shell = await sandbox.pty.create()
    result = await sandbox.pty.exec("cmd", **shaping)
    assert result.return_code == 3
    assert not shell.writes
    assert provider.sessions[1].spec.command == "cmd"
    assert provider.sessions[1].closes == 1


async def test_without_a_shell_a_private_session_is_drained_and_closed():
    sandbox, provider = await box(Finished, workdir="/w")
    assert await sandbox.pty.exec("cmd") == SandboxExecResult("café\ufffd", None, 3)
    assert await sandbox.pty.exec("cmd", pty=False) == SandboxExecResult("café\ufffd", "warned", 3)
    assert [session.closes for session in provider.sessions] == [1, 1]
    assert provider.sessions[0].spec.cwd == "/w"


async def test_a_private_session_is_closed_whatever_happens():
    class Dies(Session):
        async def read(self, timeout_s: float | None = None) -> bytes:
            raise SandboxPtyError("connection lost")

    sandbox, provider = await box(Dies)
    with pytest.raises(SandboxPtyError, match="connection lost"):
        await sandbox.pty.exec("cmd")
    assert provider.sessions[0].closes == 1

    sandbox, provider = await box(Session)
    task = asyncio.create_task(sandbox.pty.exec("cmd"))
    await until(lambda: provider.sessions)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.sessions[0].closes == 1


async def test_a_private_session_that_takes_too_long():
    def slow(spec: SandboxPtySpec) -> Session:
        session = Session(spec)
        session.out.put_nowait(b"so far")
        session.err.put_nowait(b"oops")
        return session

    sandbox, provider = await box(slow)
    result = await sandbox.pty.exec("cmd", timeout_s=0.05)
    assert result == SandboxExecResult("so far", "PTY command timed out after 0.05s", 125, "timeout")
    assert provider.sessions[0].closes == 1
    result = await sandbox.pty.exec("cmd", timeout_s=0.05, pty=False)
    assert result == SandboxExecResult("so far", "oops\nPTY command timed out after 0.05s", 125, "timeout")


# ---- what is typed and how it is read


async def test_the_output_is_what_lies_between_the_markers():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    assert await sandbox.pty.exec("echo hello", session=session) == SandboxExecResult("hello\r\n", None, 0)
    typed = session.writes[0].decode()
    assert typed.startswith("{ ")
    assert "\necho hello\n" in typed
    assert typed.splitlines()[-1] == "} </dev/null"
    await sandbox.pty.exec("echo hello", session=session)
    assert session.writes[0] != session.writes[1]


async def test_markers_may_come_in_pieces():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    session.answer = lambda start, end: [
        *(bytes([byte]) for byte in b"junk " + start + b"\r\nout" + end + b"12"), b"7", b"\r\n",
    ]  # fmt: skip
    assert await sandbox.pty.exec("x") == SandboxExecResult("out", None, 127)


async def test_a_status_without_a_line_end_is_taken_when_nothing_follows():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    session.answer = lambda start, end: [start + b"\nout\n" + end + b"4"]
    assert (await sandbox.pty.exec("x")).return_code == 4
    session.answer = lambda start, end: [start + b"\nout\n" + end + b"5", b""]
    assert (await sandbox.pty.exec("x")).return_code == 5


async def test_an_end_without_a_start_counts_when_nothing_follows():
    sandbox, _ = await box()
    session = await sandbox.pty.create()

    def refused(start: bytes, end: bytes) -> list[bytes]:
        first, second = (field.encode() for field in session.writes[-1].decode().splitlines()[-2].split("'")[3:6:2])
        shown = b"$ { printf '%s%s\\n' '" + first + b"' '" + second + b"S'\r\n"
        return [
            b"older\r\n" + shown + b"> x )\r\nsyntax error\r\n$ printf '" + first + b"'\r\n" + end[:5],
            end[5:] + b"2",
            b"\r\n$ ",
        ]

    session.answer = refused
    assert await sandbox.pty.exec("x )") == SandboxExecResult("> x )\r\nsyntax error\r\n", None, 2)
    session.answer = lambda start, end: [b"noise " + end + b"7\r\n", start + b"\r\nout" + end + b"3\r\n"]
    assert await sandbox.pty.exec("x") == SandboxExecResult("out", None, 3)


async def test_a_status_that_is_no_number():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    session.answer = lambda start, end: [start + b"\nout\n" + end + b"huh\n"]
    assert await sandbox.pty.exec("x") == SandboxExecResult("out\n", None, 125, "pty")


async def test_a_shell_that_ends_before_the_command():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    session.answer = lambda start, end: [start + b"\nout", b""]
    with pytest.raises(SandboxPtyError, match="ended before the command finished"):
        await sandbox.pty.exec("exit")


async def test_pipe_mode_gives_stderr_too():
    sandbox, _ = await box()
    session = await sandbox.pty.create(pty=False)
    session.err.put_nowait(b"one ")
    session.err.put_nowait(b"two")
    assert await sandbox.pty.exec("x") == SandboxExecResult("hello\r\n", "one two", 0)
    assert (await sandbox.pty.exec("x")).stderr is None


async def test_pipe_mode_with_an_ended_stderr():
    sandbox, _ = await box()
    session = await sandbox.pty.create(pty=False)
    session.err.put_nowait(b"")
    assert (await sandbox.pty.exec("x")).stderr is None


async def test_shaping_a_given_session_is_refused():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    for shaping in ({"cwd": "/"}, {"env": {"K": "v"}}, {"user": 0}):
        for detach in (False, True):
            with pytest.raises(ValueError, match=r"fixed at pty\.create"):
                await sandbox.pty.exec("x", session=session, detach=detach, **shaping)
    assert not session.writes


async def test_a_nul_is_refused_before_anything_is_typed():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    with pytest.raises(ValueError, match="NUL"):
        await sandbox.pty.exec("a\0b")
    assert not session.writes


@pytest.mark.parametrize(
    ("command", "options", "error", "text"),
    [
        (b"ls", {}, TypeError, "command must be a str, not bytes"),
        (None, {"detach": True}, TypeError, "command must be a str, not NoneType"),
        ("ls", {"timeout_s": 0}, ValueError, "timeout_s must be positive, got 0"),
        ("ls", {"timeout_s": float("nan")}, ValueError, "timeout_s must be positive, got nan"),
        ("ls", {"timeout_s": -1, "detach": True}, ValueError, "timeout_s must be positive, got -1"),
        ("ls", {"timeout_s": "5", "pty": False}, TypeError, "timeout_s must be a number of seconds or None, not str"),
        ("ls", {"timeout_s": True}, TypeError, "timeout_s must be a number of seconds or None, not bool"),
    ],
)
async def test_what_cannot_be_run_is_refused_as_by_other_commands(
    command: Any, options: dict[str, Any], error: type[Exception], text: str
):
    """0 said of a command that was never typed that it still runs; NaN ended at any time, or the event loop itself."""
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    with pytest.raises(error, match=text):
        await sandbox.pty.exec(command, **options)
    assert not session.writes


@pytest.mark.parametrize("endless", [float("inf"), 10**400, None], ids=["inf", "10**400", "None"])
async def test_a_command_without_a_limit(endless: float | None):
    sandbox, _ = await box()
    await sandbox.pty.create()
    assert (await sandbox.pty.exec("cmd", timeout_s=endless)).error_type is None


# ---- budgets and turns


def silent(start: bytes, end: bytes) -> list[bytes]:
    return [start + b"\r\npart"]


async def test_timeout_in_a_given_session_leaves_it_open():
    sandbox, _ = await box()
    session = await sandbox.pty.create()
    session.answer = silent
    result = await sandbox.pty.exec("x", session=session, timeout_s=0.05)
    assert (result.stdout, result.return_code, result.error_type) == ("part", 125, "timeout")
    assert result.stderr is not None
    assert result.stderr.startswith("PTY command timed out after 0.05s")
    assert "discarded" in result.stderr
    assert not session.closed


async def test_timeout_in_the_reused_shell_retires_it():
    sandbox, provider = await box()
    shell = await sandbox.pty.create()
    shell.answer = silent
    result = await sandbox.pty.exec("x", timeout_s=0.05)
    assert result == SandboxExecResult("part", "PTY command timed out after 0.05s", 125, "timeout")
    assert shell.closes == 1
    other = await sandbox.pty.create()
    assert (await sandbox.pty.exec("y")).return_code == 0
    assert len(other.writes) == 1
    assert len(provider.sessions) == 2


async def test_cancelling_in_the_reused_shell_retires_it():
    sandbox, _ = await box()
    shell = await sandbox.pty.create()
    shell.answer = silent
    task = asyncio.create_task(sandbox.pty.exec("x"))
    await until(lambda: shell.writes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shell.closes == 1


async def test_commands_take_turns_and_the_budget_covers_the_wait():
    sandbox, _ = await box()
    one, two = await sandbox.pty.create(), await sandbox.pty.create()
    answers: list[list[bytes]] = []

    def later(start: bytes, end: bytes) -> list[bytes]:
        answers.append([start + b"\r\nlate\r\n" + end + b"0\r\n"])
        return []

    one.answer = later
    first = asyncio.create_task(sandbox.pty.exec("first", session=one))
    await until(lambda: one.writes)
    waited = await sandbox.pty.exec("second", session=two, timeout_s=0.05)
    assert waited.error_type == "timeout"
    assert "discarded" not in (waited.stderr or "")  # it never ran there
    third = asyncio.create_task(sandbox.pty.exec("third", session=two))
    await asyncio.sleep(0.01)
    assert not two.writes
    for chunk in answers.pop():
        one.out.put_nowait(chunk)
    assert (await first).stdout == "late\r\n"
    assert (await third).return_code == 0


async def test_one_sandbox_does_not_wait_for_another():
    busy, _ = await box()
    free, _ = await box()
    shell = await busy.pty.create()
    shell.answer = silent
    await free.pty.create()
    task = asyncio.create_task(busy.pty.exec("x"))
    await until(lambda: shell.writes)
    assert (await free.pty.exec("y", timeout_s=5)).return_code == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# ---- detached


async def test_detached_without_a_session_opens_a_private_one():
    sandbox, provider = await box(DetachableShell, workdir="/w")
    shell = await sandbox.pty.create()
    result = await sandbox.pty.exec("make", detach=True, poll_interval_s=2, env={"K": "v"}, rows=9)
    assert result == SandboxExecResult("merged", None, 7)
    private = provider.sessions[1]
    assert private.detached_runs == [("make", 2)]
    assert private.spec == SandboxPtySpec(None, "/w", {"K": "v"}, 9, 80)
    assert private.closes == 1
    assert not shell.detached_runs
    await sandbox.pty.exec("x")
    assert len(shell.writes) == 1


async def test_detached_in_a_given_session_leaves_it_open():
    sandbox, _ = await box(DetachableShell)
    session = await sandbox.pty.create()
    session.detached_result = (b"merged", None)
    assert await sandbox.pty.exec("x", session=session, detach=True) == SandboxExecResult("merged", None, 125, "pty")
    assert session.detached_runs == [("x", 15.0)]
    assert not session.closed


async def test_detached_timeout_gives_the_session_back_attached():
    sandbox, provider = await box(DetachableShell)
    session = await sandbox.pty.create()
    session.hang = True
    result = await sandbox.pty.exec("x", session=session, detach=True, timeout_s=0.05)
    assert (result.return_code, result.error_type) == (125, "timeout")
    assert (session.reattaches, session.closes) == (1, 0)

    def hanging(spec: SandboxPtySpec) -> DetachableShell:
        made = DetachableShell(spec)
        made.hang = True
        return made

    provider.make = hanging
    assert (await sandbox.pty.exec("x", detach=True, timeout_s=0.05)).error_type == "timeout"
    assert (provider.sessions[1].reattaches, provider.sessions[1].closes) == (0, 1)


async def test_detached_needs_a_session_that_can():
    sandbox, provider = await box(ScriptedShell)
    with pytest.raises(NotImplementedError, match="detached execution"):
        await sandbox.pty.exec("x", detach=True)
    assert provider.sessions[0].closes == 1


async def test_detached_commands_take_turns_with_the_others():
    sandbox, _ = await box(DetachableShell)
    session = await sandbox.pty.create()
    session.hang = True
    task = asyncio.create_task(sandbox.pty.exec("x", session=session, detach=True))
    await until(lambda: session.detached_runs)
    assert (await sandbox.pty.exec("y", timeout_s=0.05)).error_type == "timeout"
    assert not session.writes
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
