"""The public OpenSandbox server, and the official SDK beside ours, as programs of their own."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class PublicServer:
    """A running server. ``python`` is an interpreter that has the SDK."""

    url: str
    api_key: str
    image: str
    small_image: str
    volumes: str
    python: str
    mark: str
    log: str

    def connection(self, proxied: bool) -> dict[str, Any]:
        """Our provider's connection block."""
        return {"domain": self.url, "api_key": self.api_key, "use_server_proxy": proxied}

    def containers(self) -> list[str]:
        """The server's sandboxes as the engine knows them."""
        listed = _docker("ps", "-aq", "--no-trunc", "--filter", "label=opensandbox.io/id").split()
        found: list[str] = []
        for container in listed:
            inspect = ["docker", "inspect", "--format", "{{json .Config.Env}}", container]
            shown = subprocess.run(inspect, capture_output=True, text=True, check=False, timeout=60)
            # One that has gone meanwhile is not there.
            if shown.returncode == 0 and self.mark in json.loads(shown.stdout):
                found.append(container)
        return found


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def public_server() -> Iterator[PublicServer]:
    """Run the server. It ends with the block, and with this process however that goes."""
    harness = [sys.executable, str(ROOT / "tests" / "testenv" / "opensandbox" / "serve.py")]
    with subprocess.Popen(harness, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        line = running.stdout.readline()
        assert line, "the harness has told why on stderr"
        try:
            yield PublicServer(**json.loads(line))
        finally:
            running.stdin.close()
            running.wait(60)
    assert running.returncode == 0


class Shared:
    """The server that several test modules use: started with the first, ended with the test run."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: PublicServer | None = None

    def server(self) -> PublicServer:
        if self._server is None:
            self._server = self._stack.enter_context(public_server())
        return self._server

    def close(self) -> None:
        self._server = None
        self._stack.close()


shared = Shared()


class SdkError(Exception):
    """What the SDK raised: the name of the class, and its text."""


class Sdk:
    """The official SDK. Each operation of ``sdk_driver.py`` is called by its name."""

    def __init__(self, python: str, url: str, api_key: str, proxied: bool) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / "sdk_driver.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        domain = url.removeprefix("http://")
        self._send({"domain": domain, "api_key": api_key, "use_server_proxy": proxied})

    def _send(self, value: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def __call__(self, op: str, **arguments: Any) -> Any:
        """Do one operation. Raises SdkError when the SDK raised."""
        assert self._process.stdout
        self._send({"op": op, **arguments})
        answer = json.loads(self._process.stdout.readline() or '{"error": "Died", "message": "the driver has ended"}')
        if "ok" not in answer:
            raise SdkError(f"{answer['error']}: {answer['message']}")
        return answer["ok"]

    def write(self, box: str, path: str, data: bytes, **more: Any) -> None:
        self("write", box=box, path=path, data=base64.b64encode(data).decode(), **more)

    def read(self, box: str, path: str) -> bytes:
        return base64.b64decode(self("read", box=box, path=path))

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
