"""One side of ``bench.opensandbox``, as a program of its own: ``python -m bench.opensandbox_side ours`` (or ``sdk``,
``floor``).

The first line of its input says where the server is and which sandboxes there are; each further line is a case to measure.
Every line is answered with one line of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from bench import measure
from bench.opensandbox_floor import DAEMON_PORT, ECHO, Floor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RENEW_S = 10.0


class Terminal(Protocol):
    """A terminal whose program has said that it is ready."""

    async def key(self, key: bytes) -> bytes:
        """Type a key; gives what came back."""
        ...

    async def close(self) -> None: ...


class Side(Protocol):
    """A client of the server."""

    async def exec(self, box: int) -> None:
        """Run ``true`` in the sandbox of that number."""
        ...

    async def terminal(self) -> Terminal: ...

    async def close(self) -> None: ...


class OursTerminal:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def key(self, key: bytes) -> bytes:
        await self._session.write(key)
        return bytes(await self._session.read())

    async def close(self) -> None:
        await self._session.close()


class Ours:
    """This package."""

    def __init__(self, provider: Any, handles: list[Any]) -> None:
        self._provider, self._handles = provider, handles

    @classmethod
    async def connect(cls, url: str, api_key: str, ids: list[str]) -> Ours:
        from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

        provider = OpenSandboxProvider(connection={"domain": url, "api_key": api_key})
        return cls(provider, [await provider.connect({"sandbox_id": box}) for box in ids])

    async def exec(self, box: int) -> None:
        result = await self._provider.exec(self._handles[box], "true")
        if result.return_code != 0 or result.error_type:
            raise RuntimeError(f"true failed: {result}")

    async def terminal(self) -> Terminal:
        from nemo_gym_sandbox.providers.base import SandboxPtySpec

        session = await self._provider.create_pty(self._handles[0], SandboxPtySpec(command=ECHO))
        got = b""
        while not got.endswith(b"ready"):
            got += await session.read()
        return OursTerminal(session)

    async def close(self) -> None:
        for handle in self._handles:
            await self._provider.disconnect_handle(handle)
        await self._provider.aclose()


class PlainTerminal:
    """A terminal over aiohttp, with as little in between as that allows."""

    def __init__(self, http: Any, socket: Any) -> None:
        self._http, self._socket = http, socket

    async def output(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if isinstance(message.data, bytes):
                # A replay has an offset in front.
                return message.data[9:] if message.data[0] == 3 else message.data[1:]
            if not isinstance(message.data, str):
                raise RuntimeError(f"the socket ended: {message}")

    async def key(self, key: bytes) -> bytes:
        await self._socket.send_bytes(b"\0" + key)
        return await self.output()

    async def close(self) -> None:
        await self._socket.close()
        await self._http.close()


class Sdk:
    """The official SDK; terminals, of which it has none, over aiohttp."""

    def __init__(self, sandboxes: list[Any]) -> None:
        self._sandboxes = sandboxes

    @classmethod
    async def connect(cls, url: str, api_key: str, ids: list[str]) -> Sdk:
        from opensandbox.config import ConnectionConfig

        from opensandbox import Sandbox

        connection = ConnectionConfig(domain=url.removeprefix("http://"), api_key=api_key, disable_metrics=True)
        return cls([await Sandbox.connect(box, connection_config=connection) for box in ids])

    async def exec(self, box: int) -> None:
        done = await self._sandboxes[box].commands.run("true")
        if done.exit_code != 0:
            raise RuntimeError(f"true failed: {done}")

    async def terminal(self) -> Terminal:
        import aiohttp

        base = "http://" + (await self._sandboxes[0].get_endpoint(DAEMON_PORT)).endpoint
        http = aiohttp.ClientSession()
        async with http.post(f"{base}/pty", json={"command": ECHO}) as answer:
            session = (await answer.json())["session_id"]
        terminal = PlainTerminal(http, await http.ws_connect(f"{base}/pty/{session}/ws"))
        got = b""
        while not got.endswith(b"ready"):
            got += await terminal.output()
        return terminal

    async def close(self) -> None:
        for sandbox in self._sandboxes:
            await sandbox.close()


SIDES: dict[str, type[Ours | Sdk | Floor]] = {"ours": Ours, "sdk": Sdk, "floor": Floor}


async def one_by_one(op: Callable[[], Awaitable[object]], seconds: float) -> dict[str, float]:
    """One operation after the other."""
    waits: list[float] = []
    began, cpu = time.perf_counter(), measure.cpu_s()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        await op()
        waits.append(time.perf_counter() - start)
    cpu = measure.cpu_s() - cpu
    return {
        "median, ms": median(waits) * 1e3,
        "p99, ms": measure.percentile(waits, 0.99) * 1e3,
        "CPU of the client, ms": cpu / len(waits) * 1e3,
    }


async def exec_case(side: Side, seconds: float, **_: Any) -> dict[str, float]:
    return await one_by_one(lambda: side.exec(0), seconds)


async def many_case(side: Side, seconds: float, boxes: int, in_flight: int) -> dict[str, float]:
    turn = itertools.cycle(range(boxes))
    cpu = measure.cpu_s()
    async with measure.heartbeat() as late:
        op = side.in_threads(lambda: next(turn)) if isinstance(side, Floor) else lambda: side.exec(next(turn))
        done, took = await measure.in_flight(in_flight, seconds, op)
    return {
        "per second": done / took,
        "CPU of the client, ms": (measure.cpu_s() - cpu) / done * 1e3,
        "worst lag of the loop, ms": max(late) * 1e3,
    }


async def echo_case(side: Side, seconds: float, **_: Any) -> dict[str, float]:
    terminal = await side.terminal()
    keys = itertools.cycle(range(256))

    async def one() -> None:
        key = bytes([next(keys)])
        if await terminal.key(key) != key:
            raise RuntimeError("something else came back")

    found = await one_by_one(one, seconds)
    await terminal.close()
    return found


CASES = {"exec": exec_case, "many": many_case, "echo": echo_case}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle_case(url: str, api_key: str, count: int) -> dict[str, float]:
    """Hold sandboxes whose lives are prolonged, and do nothing else."""
    from nemo_gym_sandbox.providers.base import SandboxSpec
    from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

    provider = OpenSandboxProvider(connection={"domain": url, "api_key": api_key}, create={"renew_interval_s": RENEW_S})
    spec = SandboxSpec(image="stand-in:1", ttl_s=600)
    await provider.close(await provider.create(spec))  # what is there once per process
    before = resident()
    handles: list[Any] = []
    for _ in range(count // 50):
        handles += await asyncio.gather(*(provider.create(spec) for _ in range(50)))
    seconds = 2 * RENEW_S + 5  # what making them took is given back meanwhile
    cpu = measure.cpu_s()
    await asyncio.sleep(seconds)
    cpu = measure.cpu_s() - cpu
    grown = resident() - before
    for _ in range(count // 50):
        await asyncio.gather(*(provider.close(handles.pop()) for _ in range(50)))
    await provider.aclose()
    return {
        "grown": grown,
        "cpu_s_per_s": cpu / seconds,
        "interval_s": RENEW_S,
    }


async def main(kind: str) -> None:
    lines = iter(sys.stdin.readline, "")
    server = json.loads(next(lines))
    side: Side = await SIDES[kind].connect(**server)
    print("{}", flush=True)
    for line in lines:
        asked = json.loads(line)
        case = asked.pop("case")
        if case == "idle":
            found = await idle_case(server["url"], server["api_key"], asked["count"])
        else:
            found = await CASES[case](side, boxes=len(server["ids"]), **asked)
        print(json.dumps(found), flush=True)
    await side.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
