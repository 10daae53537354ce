"""Sessions by the address of a daemon: the functions and the class of nemo_gym_sandbox.providers.opensandbox.pty."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import uvloop

from nemo_gym_sandbox.providers.base import SandboxPtyError, SandboxPtySession, SandboxPtySpec, SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxConnectionConfig, OpenSandboxProvider
from nemo_gym_sandbox.providers.opensandbox import pty as module
from nemo_gym_sandbox.providers.opensandbox.pty import OpenSandboxPtySession, attach_pty_session, open_pty_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DAEMON_PORT = 44772


class Client:
    """What a caller hands over: something that can be closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Daemon(NamedTuple):
    url: str
    headers: dict[str, str]

    async def open(self, client: Client, spec: SandboxPtySpec) -> OpenSandboxPtySession:
        return await open_pty_session(client, self.url, self.headers, spec, 20)

    async def attach(self, client: Client, session_id: str, **options: Any) -> OpenSandboxPtySession:
        return await attach_pty_session(client, self.url, self.headers, session_id, request_timeout_s=20, **options)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(
    request: pytest.FixtureRequest, server: OpenSandboxConnectionConfig
) -> Callable[[Callable[[Daemon], Awaitable[None]]], None]:
    """Runs a test with a sandbox's daemon, on either kind of event loop."""

    def runner(body: Callable[[Daemon], Awaitable[None]]) -> None:
        async def whole() -> None:
            provider = OpenSandboxProvider(connection=server)
            handle = await provider.create(SandboxSpec(image="i"))
            try:
                found = await provider.endpoint(handle, DAEMON_PORT)
                await asyncio.wait_for(body(Daemon(found.endpoint, found.headers)), 60)
            finally:
                await provider.close(handle)
                await provider.aclose()

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(whole())

    return runner


async def everything(session: OpenSandboxPtySession) -> bytes:
    return b"".join([chunk async for chunk in session])


async def until(session: OpenSandboxPtySession, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        chunk = await session.read(timeout_s=20)
        assert chunk, f"the session ended before {text!r}; there was {seen!r}"
        seen += chunk
    return seen


def test_names_parameters_and_constants_are_the_agreed_ones() -> None:
    def names(function: Callable[..., Any]) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.name != "self"]

    none = inspect.Parameter.empty
    address = [("client", none), ("base_url", none), ("headers", none)]
    assert names(open_pty_session) == [*address, ("spec", none), ("request_timeout_s", none)]
    assert names(attach_pty_session) == [
        *address,
        ("session_id", none),
        ("takeover", True),
        ("since", None),
        ("request_timeout_s", none),
    ]
    assert names(OpenSandboxPtySession.__init__) == [
        ("client", none),
        ("ws", none),
        ("session_id", none),
        ("session_url", none),
        ("headers", none),
        ("request_timeout_s", none),
        ("owned", True),
    ]
    assert names(OpenSandboxPtySession.run_detached) == [("command", none), ("poll_interval_s", 15.0)]
    for reader in ("read", "read_stderr", "wait_exit"):
        assert names(getattr(OpenSandboxPtySession, reader)) == [("timeout_s", None)]
    assert (module.CHAN_STDIN, module.CHAN_STDOUT, module.CHAN_STDERR, module.CHAN_REPLAY) == (0, 1, 2, 3)
    assert module.REPLAY_HEADER_BYTES == 9
    assert (module.WS_CLOSE_POLICY_VIOLATION, module.WS_CLOSE_TAKEN_OVER) == (1008, 4001)
    assert frozenset({"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"}) == module.SUPPORTED_SIGNALS
    assert module.LOGGER.name == module.__name__
    assert "aiohttp" not in sys.modules


def test_variables_and_users_are_written_into_the_command() -> None:
    def effective(**spec: Any) -> str | None:
        return module._effective_command(SandboxPtySpec(**spec))

    assert effective() is None
    assert effective(command="ls", user="root") == "ls"
    assert effective(command="ls", env={"A": "a b"}) == "env A='a b' sh -c ls"
    assert effective(env={"A": "1"}) == """env A=1 sh -c 'exec "$(command -v bash || echo sh)"'"""
    assert effective(user="agent") == "su -s /bin/sh agent"
    assert effective(command="echo 'x'", user="agent") == """su -s /bin/sh -c 'echo '"'"'x'"'"'' agent"""


def test_a_command_of_its_own(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        client = Client()
        spec = SandboxPtySpec(command='echo "$A"; echo other >&2; exit 3', env={"A": "it's"}, pty=False)
        async with await daemon.open(client, spec) as session:
            assert isinstance(session, SandboxPtySession)
            assert session.mode == "pipe"
            assert await everything(session) == b"it's\n"
            assert await session.read_stderr() == b"other\n"
            assert await session.wait_exit() == 3
            assert session.closed
            assert client.closed == 0
        assert client.closed == 1
        await session.close()
        assert client.closed == 1
        assert await session.wait_exit() == 3
        with pytest.raises(SandboxPtyError, match="closed"):
            await session.write(b"x")

    run(body)


def test_a_shell_with_a_terminal(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        client = Client()
        session = await daemon.open(client, SandboxPtySpec(rows=40, cols=100))
        assert (session.mode, session.closed, session.replay_offset) == ("pty", False, None)
        await session.write(b"stty size; echo do''ne\n")
        assert b"40 100" in await until(session, b"done")
        await session.resize(50, 120)
        await session.write(b"stty size; echo do''ne\n")
        assert b"50 120" in await until(session, b"done")
        with pytest.raises(ValueError, match="supports only"):
            await session.send_signal("SIGUSR1")
        await session.write(b"""sh -c 'echo re""ady; exec sleep 60'\n""")
        await until(session, b"ready")
        await session.write(b"\x03")
        await until(session, b"^C")
        await session.write(b"echo interrup''ted\n")
        await until(session, b"interrupted")
        merged, code = await session.run_detached("echo far; (exit 4)", poll_interval_s=0.05)
        assert (merged.strip(), code) == (b"far", 4)
        assert not session.closed
        waiting = asyncio.ensure_future(session.read())
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(SandboxPtyError, match="closed"):
            await waiting
        with pytest.raises(SandboxPtyError, match="closed before process exit"):
            await session.wait_exit()
        with pytest.raises(SandboxPtyError, match="not found"):
            await daemon.attach(Client(), session.session_id)
        assert client.closed == 1

    run(body)


def test_detached_it_goes_on(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        session = await daemon.open(Client(), SandboxPtySpec())
        await session.write(b"echo on''e; read x; echo tw''o\n")
        await until(session, b"one")
        await session.detach()
        await session.detach()
        assert not session.closed
        with pytest.raises(SandboxPtyError, match="detached"):
            await session.read()
        with pytest.raises(SandboxPtyError, match="detached"):
            await session.write(b"x")
        other = await daemon.attach(Client(), session.session_id)
        assert other.replay_offset == 0
        await other.write(b"\n")
        await until(other, b"two")
        await other.close()
        await session.reattach()
        await session.reattach()
        assert b"one" not in await until(session, b"two")
        await session.close()
        with pytest.raises(SandboxPtyError, match="closed"):
            await session.reattach()

    run(body)


def test_a_takeover_is_told(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        first = Client()
        session = await daemon.open(first, SandboxPtySpec())
        refused = Client()
        with pytest.raises(SandboxPtyError, match="already has an attached client"):
            await daemon.attach(refused, session.session_id, takeover=False)
        assert refused.closed == 1
        second = Client()
        other = await daemon.attach(second, session.session_id, since=0)
        with pytest.raises(SandboxPtyError, match="taken over"):
            await session.wait_exit(timeout_s=20)
        assert session.closed
        await session.close()
        await other.close()
        assert (first.closed, second.closed) == (1, 1)

    run(body)


def test_what_fails_closes_the_client(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        client = Client()
        with pytest.raises(ValueError, match="user name"):
            await daemon.open(client, SandboxPtySpec(user=1000))
        with pytest.raises(ValueError, match="user name"):
            await daemon.open(client, SandboxPtySpec(user=True))
        with pytest.raises(SandboxPtyError, match="PTY create failed with HTTP 401"):
            await open_pty_session(client, daemon.url.partition("/v1/")[0] + "/x", {}, SandboxPtySpec(), 5)
        with pytest.raises(SandboxPtyError, match="PTY session nope not found"):
            await daemon.attach(client, "nope")
        with pytest.raises(ValueError, match="http or https URL"):
            await attach_pty_session(client, "none://x", {}, "nope", request_timeout_s=None)
        assert client.closed == 5

    run(body)


def test_an_abandoned_opening_closes_the_client_too(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        client = Client()
        opening = asyncio.ensure_future(daemon.open(client, SandboxPtySpec()))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert client.closed == 1

    run(body)


def test_only_sockets_of_the_module_make_a_session(run: Any) -> None:
    async def body(daemon: Daemon) -> None:
        not_one: Any = object()
        with pytest.raises(TypeError, match="open_pty_session"):
            OpenSandboxPtySession(Client(), not_one, "id", daemon.url, {}, None)

    run(body)


def test_sessions_of_the_provider_are_of_the_class(server: OpenSandboxConnectionConfig) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(connection=server)
        handle = await provider.create(SandboxSpec(image="i"))
        session = await provider.create_pty(handle, SandboxPtySpec(command="echo x", pty=False))
        assert isinstance(session, OpenSandboxPtySession)
        assert await everything(session) == b"x\n"
        await session.close()
        await provider.close(handle)
        await provider.aclose()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_other_package_name_gives_the_same_objects() -> None:
    code = """
import nemo_gym_sandbox
nemo_gym_sandbox.install()
from nemo_gym.sandbox.providers.opensandbox.pty import OpenSandboxPtySession, attach_pty_session, open_pty_session
from nemo_gym.sandbox.providers.opensandbox import OpenSandboxProvider
import nemo_gym_sandbox.providers.opensandbox as ours, nemo_gym_sandbox.providers.opensandbox.pty as pty
assert OpenSandboxPtySession is pty.OpenSandboxPtySession and open_pty_session is pty.open_pty_session
assert OpenSandboxProvider is ours.OpenSandboxProvider
print("same")
"""
    ran = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, timeout=60)
    assert ran.stdout == "same\n", ran.stderr
