"""The sides that are compared: a package with the sandbox API, and the floor of each backend."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable


class Box(Protocol):
    """One running sandbox, or what stands for it. A method raises NotImplementedError where there is no such thing."""

    async def exec(self, command: str) -> int:
        """Run a shell command, collect its output, give the length of stdout."""
        ...

    async def stream(self, command: str) -> int:
        """The same without keeping the output."""
        ...

    async def upload(self, local: Path, name: str) -> None:
        """Copy a file into the sandbox's /tmp."""
        ...

    async def download(self, name: str, local: Path) -> None:
        """Copy a file of the sandbox's /tmp to this machine."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...


class Target(Protocol):
    """A side of the comparison."""

    name: str
    is_floor: bool
    makes_something: bool
    """Whether a start costs anything."""

    async def start(self, files: dict[str, str] | None = None) -> Box:
        """Make a sandbox in which a command can be run, with files in it."""
        ...

    def close(self) -> None:
        """Let go of what the side holds."""
        ...


class _ApiBox:
    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    async def exec(self, command: str) -> int:
        result = await self._sandbox.exec(command)
        if result.return_code != 0 or result.error_type:
            raise RuntimeError(f"{command!r} failed: {result}")
        return len(result.stdout or "")

    async def stream(self, command: str) -> int:
        total = 0

        def count(text: str) -> None:
            nonlocal total
            total += len(text)

        try:
            result = await self._sandbox.exec(command, on_stdout=count)
        except TypeError as e:
            raise NotImplementedError from e
        if result.return_code != 0:
            raise RuntimeError(f"{command!r} failed: {result}")
        return total

    async def upload(self, local: Path, name: str) -> None:
        await self._sandbox.upload(local, f"/tmp/{name}")

    async def download(self, name: str, local: Path) -> None:
        await self._sandbox.download(f"/tmp/{name}", local)

    async def stop(self) -> None:
        await self._sandbox.stop()


class Api:
    """A module with ``AsyncSandbox`` and ``SandboxSpec``."""

    is_floor = False
    makes_something = True

    def __init__(self, module: str, provider: str, image: str, config: dict[str, Any]) -> None:
        self.name = module
        self._module = importlib.import_module(module)
        self._provider, self._image, self._config = provider, image, config

    async def start(self, files: dict[str, str] | None = None) -> Box:
        image = None if self._provider == "local" else self._image
        spec = self._module.SandboxSpec(image=image, files=files or {})
        sandbox = self._module.AsyncSandbox({self._provider: self._config}, spec)
        await sandbox.start()
        return _ApiBox(sandbox)

    def close(self) -> None:
        pass


class _EngineBox:
    def __init__(self, engine: Engine, container: str) -> None:
        self._engine, self._container = engine, container

    async def exec(self, command: str) -> int:
        return await self._run(command, keep=True)

    async def stream(self, command: str) -> int:
        return await self._run(command, keep=False)

    async def _run(self, command: str, keep: bool) -> int:
        code, size, _ = await self._engine.exec(self._container, command, keep)
        if code != 0:
            raise RuntimeError(f"{command!r} ended with {code}")
        return size

    async def upload(self, local: Path, name: str) -> None:
        await self._engine.upload(self._container, str(local), name)

    async def download(self, name: str, local: Path) -> None:
        await self._engine.download(self._container, f"/tmp/{name}", str(local))

    async def stop(self) -> None:
        await self._engine.remove(self._container)


class EngineFloor:
    """The engine's own API: create and start, exec, archives."""

    name = "engine API"
    is_floor = True
    makes_something = True

    def __init__(self, image: str) -> None:
        self._engine, self._image = Engine(), image

    async def start(self, files: dict[str, str] | None = None) -> Box:
        container = await self._engine.create(self._image)
        if files:
            await self._engine.write(container, files)
        return _EngineBox(self._engine, container)

    def close(self) -> None:
        self._engine.close()


class _ForkBox:
    def __init__(self, tmp: Path, wrap: list[str]) -> None:
        self._tmp, self._first = tmp, wrap

    async def _spawn(self, command: str) -> asyncio.subprocess.Process:
        # The first one starts "the sandbox": bubblewrap around one command.
        argv = [*self._first, "/bin/bash", "-c", command]
        self._first = []
        none, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*argv, stdin=none, stdout=pipe, stderr=pipe, cwd=self._tmp)

    async def exec(self, command: str) -> int:
        process = await self._spawn(command.replace("/tmp/", f"{self._tmp}/"))
        out, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{command!r} ended with {process.returncode}")
        return len(out)

    async def stream(self, command: str) -> int:
        process = await self._spawn(command.replace("/tmp/", f"{self._tmp}/"))
        assert process.stdout is not None
        total = 0
        while piece := await process.stdout.read(1 << 16):
            total += len(piece)
        await process.wait()
        return total

    async def upload(self, local: Path, name: str) -> None:
        await asyncio.to_thread(shutil.copyfile, local, self._tmp / name)

    async def download(self, name: str, local: Path) -> None:
        await asyncio.to_thread(shutil.copyfile, self._tmp / name, local)

    async def stop(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._tmp)


class ForkFloor:
    """A fork and an exec by asyncio for each command. Its start is one command under bubblewrap."""

    name = "fork + exec"
    is_floor = True
    makes_something = False

    def __init__(self) -> None:
        wrap = shutil.which("bwrap")
        spaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        self._wrap = [wrap, *spaces, "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"] if wrap else []

    async def start(self, files: dict[str, str] | None = None) -> Box:
        tmp = Path(tempfile.mkdtemp(prefix="bench-"))
        for name, text in (files or {}).items():
            path = tmp / name.removeprefix("/tmp/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return _ForkBox(tmp, list(self._wrap))

    def close(self) -> None:
        pass


def floor(provider: str, image: str) -> Target:
    """The floor that a provider is measured beside."""
    floors: dict[str, Callable[[], Target]] = {"docker": lambda: EngineFloor(image), "local": ForkFloor}
    return floors[provider]()
