"""Real sandboxes for the tests of terminals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nemo_gym_sandbox import AsyncSandbox, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

IMAGE = "lab/busybox:1"
PACKAGE = Path(__file__).resolve().parents[3] / "python"


@pytest.fixture(params=["local", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def sandbox(backend: str) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox({backend: {}}, SandboxSpec(image=None if backend == "local" else IMAGE)) as box:
        await box.start()
        yield box


@pytest.fixture
async def on_local() -> AsyncIterator[AsyncSandbox]:
    """A sandbox for what does not depend on the backend."""
    async with AsyncSandbox({"local": {}}, SandboxSpec()) as box:
        await box.start()
        yield box


@pytest.fixture
def client(backend: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts another process that uses the API; the arguments are its sys.argv, and ``provider`` is its configuration."""

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        program = tmp_path / "client.py"
        head = f"import asyncio, json, sys\nfrom nemo_gym_sandbox import *\nprovider = {{{backend!r}: {{}}}}\n"
        program.write_text(head + textwrap.dedent(source))
        env: dict[str, Any] = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        started.append(process)
        return process

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        process.kill()
        process.communicate()
