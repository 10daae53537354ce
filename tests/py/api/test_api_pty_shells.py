"""Commands typed into real shells of this machine: the output alone comes back, whatever is typed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from api_terminals import TerminalProvider, real_shell

from nemo_gym_sandbox import AsyncSandbox, SandboxPtySpec, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm", "PS1": "prompt $ ", "HISTFILE": ""}
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "bash-utf8": ["bash", "--norc", "--noprofile"],
    "dash": ["dash"],
    "busybox": ["busybox", "ash"],
}
PRESENT = [name for name, argv in SHELLS.items() if shutil.which(argv[0])]


def test_at_least_one_shell_is_here():
    assert "bash" in PRESENT


@pytest_asyncio.fixture(params=PRESENT)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[AsyncSandbox]:
    environ = ENVIRON | ({"LC_ALL": "C.UTF-8"} if request.param == "bash-utf8" else {})

    async def make(spec: SandboxPtySpec) -> Any:
        return await real_shell(SHELLS[request.param], spec, environ)

    provider = TerminalProvider(make)
    async with AsyncSandbox(provider, SandboxSpec()) as started:
        await started.start()
        yield started
        for session in provider.sessions:
            await session.close()


async def run(sandbox: AsyncSandbox, command: str) -> tuple[str, int]:
    result = await sandbox.pty.exec(command, timeout_s=20)
    assert result.error_type is None, result
    return (result.stdout or "").replace("\r\n", "\n"), result.return_code


async def test_state_lasts_and_prompts_do_not_show(sandbox: AsyncSandbox):
    await sandbox.pty.create()
    assert await run(sandbox, "echo one; echo two") == ("one\ntwo\n", 0)
    assert await run(sandbox, "cd /; X=5") == ("", 0)
    assert await run(sandbox, "pwd; echo $X; (exit 7)") == ("/\n5\n", 7)
    assert await run(sandbox, "printf no-newline") == ("no-newline", 0)
    assert await run(sandbox, "cat") == ("", 0)


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo a\necho b\n(exit 2)", "a\nb\n", 2),
        ("cat <<'E'\n$X `y`\nE", "$X `y`\n", 0),
        ("printf '%s\\n' 'a\tb'", "a\tb\n", 0),
        ("printf '%s|' \"wow!! $((1+1))\" 'it'\\''s'", "wow!! 2|it's|", 0),
        ("printf '%s\\n' ☕żółć", "☕żółć\n", 0),
        ("printf '%s' 'end\n\n'", "end\n\n", 0),
        ("true \\", "", 0),
        ("echo a # comment", "a\n", 0),
        ("false", "", 1),
    ],
)
async def test_what_is_typed_arrives_verbatim(sandbox: AsyncSandbox, command: str, output: str, status: int):
    await sandbox.pty.create()
    assert await run(sandbox, command) == (output, status)
    assert await run(sandbox, "echo alive") == ("alive\n", 0)


@pytest.mark.parametrize("command", ["echo )", "echo fine; done", ";"])
async def test_a_mistake_in_a_command_is_told_at_once(sandbox: AsyncSandbox, command: str):
    await sandbox.pty.create()
    output, status = await run(sandbox, command)
    assert "syntax error" in output.lower()
    assert "NGS" not in output
    assert status == 2
    assert await run(sandbox, "echo alive") == ("alive\n", 0)


@pytest.mark.parametrize("size", [980, 1100, 4100, 20_000])
async def test_long_lines_are_not_cut(sandbox: AsyncSandbox, size: int):
    await sandbox.pty.create()
    assert await run(sandbox, f"V={'x' * size}; echo ${{#V}}") == (f"{size}\n", 0)
    assert await run(sandbox, "echo ${_ngs_command-unset}") == ("unset\n", 0)


async def test_pipe_mode_splits_the_channels(sandbox: AsyncSandbox):
    await sandbox.pty.create(pty=False)
    result = await sandbox.pty.exec("echo out; echo err >&2; (exit 3)", timeout_s=20)
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)


async def test_a_command_of_its_own(sandbox: AsyncSandbox):
    result = await sandbox.pty.exec("tty >/dev/null && echo terminal; exit 4", timeout_s=20)
    assert (result.stdout, result.return_code) == ("terminal\r\n", 4)
    result = await sandbox.pty.exec("echo out; echo err >&2", pty=False, timeout_s=20)
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 0)
