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


REQUIRED = inspect.Parameter.empty
ADDRESS = ["client", "base_url", "headers"]

# name: parameters in order; a bare name is required, a pair has a default
FUNCTIONS: dict[str, list[Any]] = {
    "_connect_ws": [*ADDRESS, "session_id", "query", "request_timeout_s"],
    "_effective_command": ["spec"],
    "_start_session": ["client", "ws", "base_url", "session_id", "headers", "request_timeout_s", ("owned", True)],
    "attach_pty_session": [*ADDRESS, "session_id", ("takeover", True), ("since", None), "request_timeout_s"],
    "open_pty_session": [*ADDRESS, "spec", "request_timeout_s"],
}
METHODS: dict[str, list[Any]] = {
    "__init__": ["client", "ws", "session_id", "session_url", "headers", "request_timeout_s", ("owned", True)],
    "__aenter__": [],
    "__aexit__": ["exc_type", "exc_val", "exc_tb"],
    "__aiter__": [],
    "_close_error": [],
    "_pump": [],
    "_pump_socket": [],
    "_read_stream": ["queue", "timeout_s"],
    "_reattach_socket": [],
    "_send": ["frame"],
    "_wait_connected": ["timeout_s"],
    "close": [],
    "detach": [],
    "read": [("timeout_s", None)],
    "read_stderr": [("timeout_s", None)],
    "reattach": [],
    "resize": ["rows", "cols"],
    "run_detached": ["command", ("poll_interval_s", 15.0)],
    "send_signal": ["signal"],
    "wait_exit": [("timeout_s", None)],
    "write": ["data"],
}
CONSTANTS: dict[str, Any] = {
    "CHAN_STDIN": 0,
    "CHAN_STDOUT": 1,
    "CHAN_STDERR": 2,
    "CHAN_REPLAY": 3,
    "REPLAY_HEADER_BYTES": 9,
    "SUPPORTED_SIGNALS": frozenset({"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"}),
    "WS_CLOSE_POLICY_VIOLATION": 1008,
    "WS_CLOSE_TAKEN_OVER": 4001,
    "_DEFAULT_SHELL_SNIPPET": 'exec "$(command -v bash || echo sh)"',
    "_PTY_RETRY_DELAYS": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
}
NOT_COROUTINES = {"__init__", "__aiter__", "_close_error", "_effective_command"}


@pytest.mark.parametrize(("name", "expected"), [*FUNCTIONS.items(), *METHODS.items()])
def test_names_and_parameters_are_the_agreed_ones(name: str, expected: list[Any]) -> None:
    function = getattr(module if name in FUNCTIONS else OpenSandboxPtySession, name)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    assert [p.name if p.default is REQUIRED else (p.name, p.default) for p in parameters] == expected
    # Each can be given by position, but for what follows parameters with a default and has none.
    after_default = False
    for parameter in parameters:
        wanted = parameter.KEYWORD_ONLY if after_default and parameter.default is REQUIRED else None
        assert parameter.kind is (wanted or parameter.POSITIONAL_OR_KEYWORD), parameter
        after_default = after_default or parameter.default is not REQUIRED
    assert inspect.iscoroutinefunction(function) is (name not in NOT_COROUTINES)


@pytest.mark.parametrize(("name", "expected"), CONSTANTS.items())
def test_constants_are_the_agreed_ones(name: str, expected: Any) -> None:
    assert getattr(module, name) == expected


def test_the_module_names_its_log_and_loads_no_client() -> None:
    assert module.LOGGER.name == module.__name__
    assert OpenSandboxPtySession.__module__ == module.__name__
    assert "aiohttp" not in sys.modules
    for name in ("closed", "mode", "replay_offset", "session_id"):
        assert isinstance(getattr(OpenSandboxPtySession, name), property)


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
        # A shell writes its prompt when it likes, and a read that is to wait must have nothing to get.
        await session.write(b"""exec sh -c 'stty -echo; echo qui""et; exec sleep 60'\n""")
        await until(session, b"quiet\r\n")
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


def test_only_sockets_make_a_session(run: Any) -> None:
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


def test_a_takeover_detaches_what_the_same_provider_holds(server: OpenSandboxConnectionConfig) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(connection=server)
        handle = await provider.create(SandboxSpec(image="i"))
        reader = SandboxPtySpec(command="stty -echo; echo begun; while read x; do echo got-$x; done")
        first = await provider.create_pty(handle, reader)
        await until(first, b"begun\r\n")
        with pytest.raises(SandboxPtyError, match="already has an attached client"):
            await provider.attach_pty(handle, first.session_id, takeover=False)
        waiting = asyncio.ensure_future(first.read())
        await asyncio.sleep(0)
        second = await provider.attach_pty(handle, first.session_id)
        for attempt in (waiting, first.read(), first.write(b"x")):
            with pytest.raises(SandboxPtyError, match="detached"):
                await attempt
        assert not first.closed
        await second.write(b"one\n")
        await until(second, b"got-one")
        # It comes back where it was, from whatever is attached then.
        await first.reattach()
        assert b"begun" not in await until(first, b"got-one")
        with pytest.raises(SandboxPtyError, match="taken over"):
            await second.wait_exit(timeout_s=20)
        third = await provider.attach_pty(handle, first.session_id, since=0)
        with pytest.raises(SandboxPtyError, match="detached"):
            await first.read()
        await until(third, b"got-one")
        for session in (third, second, first):
            await session.close()
        with pytest.raises(SandboxPtyError, match="not found"):
            await provider.attach_pty(handle, first.session_id)
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
