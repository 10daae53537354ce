"""What the tests of the border between Python and the library share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Operations that provoke faults; read when the library is loaded.
os.environ["NGS_TEST_HOOKS"] = "1"

from nemo_gym_sandbox._core.capabilities import (
    NativeDefaults,
    NativeEndpoints,
    NativePausing,
    NativeReconnection,
    NativeServices,
)
from nemo_gym_sandbox.providers.base import SandboxHandle, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROOT = Path(__file__).resolve().parents[3]


class Mem(NativeReconnection, NativeDefaults, NativeEndpoints, NativePausing, NativeServices):
    """The provider without processes."""

    name = "mem"


class Box:
    """A sandbox with its provider, for short tests."""

    def __init__(self, provider: Mem, handle: SandboxHandle) -> None:
        self.provider = provider
        self.handle = handle

    async def exec(self, command: str, **options: Any) -> Any:
        return await self.provider.exec(self.handle, command, **options)

    async def stream(self, command: str, **options: Any) -> Any:
        return await self.provider.exec_stream(self.handle, command, **options)


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    provider = Mem({})
    handle = await provider.create(SandboxSpec())
    yield Box(provider, handle)
    await provider.close(handle)
    await provider.aclose()


PRELUDE = """
import asyncio, gc, os, signal, sys, threading, time
from nemo_gym_sandbox._core.native import NativeProvider
from nemo_gym_sandbox._core.loop import running_bridge
from nemo_gym_sandbox._core import codec, lib
from nemo_gym_sandbox.providers.base import SandboxSpec

class Mem(NativeProvider):
    name = "mem"
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in its own interpreter, with the prelude before it. A hang is a failure."""

    def run(source: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + textwrap.dedent(source))
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **options.pop("env", {})}
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60, **options}
        return subprocess.run([sys.executable, str(path), *arguments], env=env, check=False, **options)

    return run
