"""The stand-in server, as a program of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

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


@pytest.fixture(scope="module")
def server(program: Path) -> Iterator[OpenSandboxConnectionConfig]:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        url, key = running.stdout.readline().split()
        yield OpenSandboxConnectionConfig(domain=url, api_key=key, use_server_proxy=True)
        running.stdin.close()
