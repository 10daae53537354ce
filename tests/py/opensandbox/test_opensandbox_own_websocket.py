"""Sessions over a websocket that the caller has made, and what subclasses and tests reach for."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from own_client import OwnClient, WebSocket

from nemo_gym_sandbox.providers.base import SandboxPtyError, SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxConnectionConfig, OpenSandboxProvider
from nemo_gym_sandbox.providers.opensandbox import pty as module
from nemo_gym_sandbox.providers.opensandbox.pty import OpenSandboxPtySession, PtySocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 20
READER = "stty -echo -onlcr; echo begun; while read x; do echo got-$x; done"


class Made(NamedTuple):
    """A session that the caller made with a client of their own."""

    client: OwnClient
    base: str
    headers: dict[str, str]
    id: str

    @property
    def url(self) -> str:
        return f"{self.base}/pty/{self.id}"

    async def dial(self, query: str = "") -> WebSocket:
        return await self.client.ws_connect(f"{self.url}/ws{query}", headers=self.headers)

    def session(self, ws: Any, **options: Any) -> OpenSandboxPtySession:
        return OpenSandboxPtySession(self.client, ws, self.id, self.url, self.headers, PATIENCE_S, **options)

    async def exists(self) -> bool:
        async with OwnClient().get(self.url, headers=self.headers) as response:
            return response.status == 200


class Daemon(NamedTuple):
    base: str
    headers: dict[str, str]

    async def make(self, command: str = READER) -> Made:
        client = OwnClient()
        body = json.dumps({"command": command}).encode()
        async with client.post(f"{self.base}/pty", headers=self.headers, data=body) as response:
            assert response.status == 201
            found = await response.read()
        return Made(
            client, self.base, self.headers, json.loads(found[found.index(b"{") : found.rindex(b"}") + 1])["session_id"]
        )


@pytest.fixture
async def daemon(server: OpenSandboxConnectionConfig) -> AsyncIterator[Daemon]:
    provider = OpenSandboxProvider(connection=server)
    handle = await provider.create(SandboxSpec(image="i"))
    try:
        found = await provider.endpoint(handle, 44772)
        yield Daemon(found.endpoint, found.headers)
    finally:
        await provider.close(handle)
        await provider.aclose()


async def until(session: OpenSandboxPtySession, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        chunk = await session.read(timeout_s=PATIENCE_S)
        assert chunk, f"the session ended before {text!r}; there was {seen!r}"
        seen += chunk
    return seen


async def test_a_session_over_a_websocket_of_the_caller(daemon: Daemon) -> None:
    made = await daemon.make(READER + "; exit 7")
    ws = await made.dial()
    session = made.session(ws)
    assert (session.session_id, session.mode, session.closed) == (made.id, None, False)
    assert await until(session, b"begun\n") == b"begun\n"
    assert session.mode == "pty"
    await session.write(b"one\n")
    assert await until(session, b"got-one\n") == b"got-one\n"
    await session.resize(50, 120)
    with pytest.raises(TimeoutError):
        await session.read(timeout_s=0.01)
    await session.write(b"\x04")
    assert await session.read(timeout_s=PATIENCE_S) == b""
    assert await session.wait_exit(timeout_s=PATIENCE_S) == 7
    assert session.closed
    assert made.client.closed == 0
    await session.close()
    await session.close()
    assert made.client.closed == 1
    assert made.client.asked[-1] == f"DELETE /{made.id}"
    assert ws.closes
    assert not await made.exists()


async def test_it_is_pipes_when_the_websocket_says_so(daemon: Daemon) -> None:
    made = await daemon.make("echo out; echo other >&2; exit 3")
    async with made.session(await made.dial("?pty=0")) as session:
        assert b"".join([chunk async for chunk in session]) == b"out\n"
        assert session.mode == "pipe"
        assert await session.read_stderr(timeout_s=PATIENCE_S) == b"other\n"
        assert await session.wait_exit(timeout_s=PATIENCE_S) == 3


async def test_a_lost_websocket_is_replaced_by_the_callers_client(daemon: Daemon) -> None:
    made = await daemon.make()
    ws = await made.dial()
    async with made.session(ws) as session:
        assert await until(session, b"begun\n") == b"begun\n"
        reading = asyncio.create_task(until(session, b"got-two\n"))
        ws.cut()
        await asyncio.wait_for(made.client.came_back.wait(), PATIENCE_S)
        await session.write(b"two\n")
        assert await asyncio.wait_for(reading, PATIENCE_S) == b"got-two\n"
        assert made.client.asked[-1] == f"GET /{made.id}/ws?takeover=1&since=6"
        assert len(made.client.sockets) == 2


async def test_offsets_are_those_of_the_session_wherever_the_caller_begins(daemon: Daemon) -> None:
    made = await daemon.make()
    async with made.session(await made.dial(), owned=False) as session:
        await until(session, b"begun\n")
        await session.write(b"one\n")
        await until(session, b"got-one\n")
    made = made._replace(client=OwnClient())
    ws = await made.dial("?takeover=1&since=10")
    async with made.session(ws, owned=False) as session:
        assert await until(session, b"one\n") == b"one\n"
        assert session.replay_offset == 10
        ws.cut()
        await asyncio.wait_for(made.client.came_back.wait(), PATIENCE_S)
        await session.write(b"two\n")
        assert await until(session, b"two\n") == b"got-two\n"
        assert made.client.asked[-1].endswith("since=14")
    assert "DELETE" not in "".join(made.client.asked)
    assert await made.exists()


async def test_it_detaches_and_comes_back_with_the_callers_client(daemon: Daemon) -> None:
    made = await daemon.make()
    async with made.session(await made.dial()) as session:
        await until(session, b"begun\n")
        await session.detach()
        with pytest.raises(SandboxPtyError, match="detached"):
            await session.read()
        await session.reattach()
        await session.write(b"on\n")
        assert await until(session, b"got-on\n") == b"got-on\n"
        assert await session._reattach_socket()
        await session.write(b"again\n")
        await until(session, b"got-again\n")
        assert session._error is None


async def test_commands_run_detached_over_it(daemon: Daemon) -> None:
    made = await daemon.make("exec sh")
    async with made.session(await made.dial()) as session:
        assert await session.run_detached("echo far; (exit 4)", poll_interval_s=0.05) == (b"far\r\n", 4)


async def test_a_takeover_is_told_over_it(daemon: Daemon) -> None:
    made = await daemon.make()
    async with made.session(await made.dial()) as session:
        await until(session, b"begun\n")
        thief = await OwnClient().ws_connect(f"{made.url}/ws?takeover=1", headers=made.headers)
        with pytest.raises(SandboxPtyError, match="taken over"):
            await session.wait_exit(timeout_s=PATIENCE_S)
        assert session.closed
        assert "taken over" in str(session._close_error())
        assert str(session._error) == str(session._close_error())
        await session._pump()
        await thief.close()


async def test_a_websocket_that_is_greeted_already_is_taken_as_it_is(daemon: Daemon) -> None:
    made = await daemon.make()
    ws = await made.dial()
    messages = aiter(ws)
    seen = [await anext(messages), await anext(messages)]
    assert {message.type for message in seen} == {1, 2}

    class Rest:
        close_code = None
        send_bytes, send_str, close = ws.send_bytes, ws.send_str, ws.close

        def __aiter__(self) -> AsyncIterator[Any]:
            return messages

    async with made.session(Rest()) as session:
        await session.write(b"late\n")
        await until(session, b"got-late\n")
        assert session.mode is None


async def test_a_session_is_started_when_it_is_attached(daemon: Daemon) -> None:
    made = await daemon.make()
    arguments = (made.client, await made.dial(), made.base, made.id, made.headers, PATIENCE_S)
    session = await module._start_session(*arguments)
    assert session.mode == "pty"
    await until(session, b"begun")
    await session.close()
    assert not await made.exists()


async def test_a_websocket_that_ends_before_it_is_attached_is_told_and_released(daemon: Daemon) -> None:
    made = await daemon.make()
    holder = await made.dial()
    async for message in holder:
        if message.type == 2:
            break

    class Lost(WebSocket):
        async def __aiter__(self) -> AsyncIterator[Any]:
            self.close_code = 1006
            for _ in ():
                yield

    class Refused(WebSocket):
        async def __aiter__(self) -> AsyncIterator[Any]:
            self.close_code = 1008
            for _ in ():
                yield

    for kind, code in ((Refused, "1008"), (Lost, "1006")):
        client = OwnClient()
        ws = await client.ws_connect(f"{made.url}/ws?takeover=1", headers=made.headers)
        ws.__class__ = kind
        with pytest.raises(SandboxPtyError, match=f"before it was established .close code {code}"):
            await module._start_session(client, ws, made.base, made.id, made.headers, PATIENCE_S, owned=False)
        assert (client.closed, ws.closes > 0) == (1, True)
    client = OwnClient()
    ws = await client.ws_connect(f"{made.url}/ws?takeover=1", headers=made.headers)
    ws.__class__ = Refused
    session = OpenSandboxPtySession(client, ws, made.id, made.url, made.headers, PATIENCE_S, owned=False)
    with pytest.raises(SandboxPtyError, match="already has an attached client"):
        await session.read()
    await session.close()
    await holder.close()


async def test_a_silent_websocket_is_waited_for_no_longer_than_asked(daemon: Daemon) -> None:
    made = await daemon.make()
    ws = await made.dial()

    class Silent(WebSocket):
        async def __aiter__(self) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

    ws.__class__ = Silent
    with pytest.raises(TimeoutError, match=r"not attached within 0\.1 s"):
        await module._start_session(made.client, ws, made.base, made.id, made.headers, 0.1)
    assert made.client.closed == 1
    assert not await made.exists()


async def test_it_can_be_closed_at_once(daemon: Daemon) -> None:
    made = await daemon.make("exec sleep 60")
    ws = await made.dial()
    session = made.session(ws)
    waiting = asyncio.create_task(session.read())
    await asyncio.sleep(0)
    await session.close()
    with pytest.raises(SandboxPtyError, match="closed"):
        await waiting
    with pytest.raises(SandboxPtyError, match="closed"):
        await session.write(b"x")
    assert session.closed
    assert (made.client.closed, ws.closes > 0) == (1, True)
    assert not await made.exists()


async def test_a_client_that_can_not_dial_ends_the_session_with_its_websocket(daemon: Daemon) -> None:
    made = await daemon.make()
    ws = await made.dial()

    class Closable:
        async def close(self) -> None:
            pass

    session = OpenSandboxPtySession(Closable(), ws, made.id, made.url, made.headers, PATIENCE_S)
    await until(session, b"begun\n")
    ws.cut()
    with pytest.raises(SandboxPtyError, match="501"):
        await session.read(timeout_s=PATIENCE_S)
    await session.close()
    assert await made.exists()


async def test_frames_can_be_sent_as_the_daemon_knows_them(daemon: Daemon) -> None:
    made = await daemon.make(
        "stty -echo -onlcr; trap 'echo size; stty size' WINCH; while :; do read x && echo got-$x; done"
    )
    async with made.session(await made.dial()) as session:
        await session._send(b"\x00one\n")
        await until(session, b"got-one\n")
        await session._send('{"type":"stdin","data":"two\\n"}')
        await until(session, b"got-two\n")
        await session._send('{"type":"ping"}')
        await session._send('{"type":"resize","rows":33,"cols":99}')
        await session._send(b"\x00three\n")
        await until(session, b"33 99")
        for wrong in (b"\x04x", '{"type":"dance"}'):
            with pytest.raises(ValueError, match=r"channel|control message"):
                await session._send(wrong)
        with pytest.raises(TimeoutError):
            await session._read_stream(session._stderr, 0.01)
        await session._send('{"type":"signal","signal":"SIGKILL"}')
        assert await session.wait_exit(timeout_s=PATIENCE_S) != 0
        await session._pump_socket()


async def test_a_socket_of_the_module_becomes_one_session(daemon: Daemon) -> None:
    made = await daemon.make("echo out; echo other >&2; exit 3")
    ws = await module._connect_ws(made.client, made.base, made.headers, made.id, {"pty": "0"}, PATIENCE_S)
    assert isinstance(ws, PtySocket)
    assert (ws.session_id, ws.closed) == (made.id, False)
    with pytest.raises(ValueError, match="not of other"):
        OpenSandboxPtySession(made.client, ws, "other", made.url, made.headers, None)
    session = await module._start_session(made.client, ws, made.base, made.id, made.headers, PATIENCE_S)
    assert (session.mode, ws.closed) == ("pipe", True)
    assert await session.read(timeout_s=PATIENCE_S) == b"out\n"
    await ws.close()
    with pytest.raises(SandboxPtyError, match="has it already"):
        made.session(ws)
    await session.close()
    assert made.client.asked[1:] == [f"DELETE /{made.id}"], "the client only ends what its caller has made"
    assert made.client.closed == 1


async def test_a_socket_of_which_no_session_is_made_is_let_go_of(daemon: Daemon) -> None:
    made = await daemon.make()
    for drop in (True, False):
        ws = await module._connect_ws(made.client, made.base, made.headers, made.id, {"takeover": "1"}, PATIENCE_S)
        if drop:
            del ws
        else:
            await ws.close()
            assert ws.closed
        async with asyncio.timeout(PATIENCE_S):
            while True:  # the daemon knows a moment later
                try:
                    other = await made.dial()
                    break
                except Exception as error:
                    assert getattr(error, "status", None) == 409
                    await asyncio.sleep(0.01)
        await other.close()
    with pytest.raises(ValueError, match="knows no speed"):
        await module._connect_ws(made.client, made.base, made.headers, made.id, {"speed": "9"}, PATIENCE_S)


async def test_what_replaces_a_part_of_the_module_is_used(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await daemon.make()
    seen: list[dict[str, str]] = []

    async def dial(
        client: OwnClient, base: str, headers: dict[str, str], number: str, query: dict[str, str], _: float | None
    ) -> WebSocket:
        seen.append(query)
        return await client.ws_connect(f"{base}/pty/{number}/ws", headers=headers)

    monkeypatch.setattr(module, "_connect_ws", dial)
    attach = module.attach_pty_session
    session = await attach(made.client, made.base, made.headers, made.id, since=0, request_timeout_s=PATIENCE_S)
    assert seen == [{"takeover": "1", "since": "0"}]
    await until(session, b"begun\n")
    await session.close()
    assert await made.exists()
    assert made.client.closed == 1


async def test_much_passes_in_both_directions(daemon: Daemon) -> None:
    made = await daemon.make(
        "stty raw -echo; echo begun; head -c 200000 | sha1sum; head -c 3000000 /dev/zero | tr '\\0' x; echo end"
    )
    data = bytes(range(256)) * 782
    async with made.session(await made.dial()) as session:
        await until(session, b"begun")
        await session.write(data[:200000])
        got = await until(session, b"end")
        assert hashlib.sha1(data[:200000]).hexdigest().encode() in got
        assert got.count(b"x") == 3_000_000
