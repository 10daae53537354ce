"""The stand-in server, as a program of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from nemo_gym_sandbox.providers.opensandbox import OpenSandboxConnectionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    assert go, "the stand-in server is built with Go"
    program = tmp_path_factory.mktemp("standin") / "serve"
    subprocess.run([go, "build", "-o", program, "./tests/standins/opensandbox/serve"], cwd=ROOT, check=True)
    return program


class Server(NamedTuple):
    """A running stand-in."""

    process: subprocess.Popen[str]
    url: str
    key: str

    @property
    def connection(self) -> OpenSandboxConnectionConfig:
        return OpenSandboxConnectionConfig(domain=self.url, api_key=self.key, use_server_proxy=True)

    def fail(self, **fault: Any) -> None:
        """Make something fail; the fields are those of the stand-in's Fault."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(fault) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"


@pytest.fixture(scope="module")
def standin(program: Path) -> Iterator[Server]:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        url, key = running.stdout.readline().split()
        yield Server(running, url, key)
        running.stdin.close()


@pytest.fixture(scope="module")
def server(standin: Server) -> OpenSandboxConnectionConfig:
    return standin.connection
