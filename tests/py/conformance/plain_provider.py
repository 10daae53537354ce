"""A provider as a stranger might write it: plain Python, the required methods, processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym_sandbox import SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus


@dataclass
class Place:
    """One sandbox: where it is, and what runs in it."""

    folder: Path
    spec: SandboxSpec
    groups: set[int] = field(default_factory=set)
    closed: bool = False

    def path(self, remote: str) -> Path:
        return self.folder / remote


class PlainProvider:
    """Each command is a process group; its output goes to files, so that what it leaves running holds nothing back."""

    name = "plain"
    writes_spec_files = False
    keeps_file_modes = True

    def __init__(self, root: str | None = None) -> None:
        self._root = root

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        for name, value in spec.env.items():
            _check_variable(name, value)
        if "" in spec.files:
            raise ValueError("a file of the spec has no path")
        if spec.workdir is None:
            folder = Path(tempfile.mkdtemp(prefix="plain-", dir=self._root))
        else:
            folder = Path(spec.workdir)
            folder.mkdir(parents=True, exist_ok=True)
        return SandboxHandle(f"plain-{id(folder):x}", self.name, Place(folder, spec))

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        place: Place = handle.raw
        if user is not None:
            raise ValueError("the plain provider runs commands as one user only")
        for name, value in (env or {}).items():
            _check_variable(name, value)
        where = Path(cwd or place.folder)
        if "\0" in str(where):
            raise ValueError("a path cannot contain a NUL character")
        if not await asyncio.to_thread(where.is_dir):
            raise ValueError(f"there is no directory {str(where)!r}")
        if place.closed:
            return SandboxExecResult("", "the sandbox was closed", 125, "sandbox")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = await asyncio.create_subprocess_exec(
                "bash",
                "-c",
                "--",
                command,
                cwd=where,
                env={**_inherited(), **place.spec.env, **(env or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            place.groups.add(process.pid)
            error_type, remark = None, ""
            try:
                async with asyncio.timeout(180 if timeout_s is None else timeout_s):
                    code = await process.wait()
                code = 128 - code if code < 0 else code
            except TimeoutError:
                code, error_type, remark = 125, "timeout", f"plain command timed out after {timeout_s:g}s"
            finally:
                place.groups.discard(process.pid)
                if process.returncode is None:
                    await _kill(process)
            if place.closed:
                code, error_type, remark = 125, "sandbox", "the sandbox was closed while the command ran"
            return SandboxExecResult(_text(out), _text(err) + remark, code, error_type)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        target = handle.raw.path(target_path)
        try:
            await asyncio.to_thread(_copy, source_path, target)
        except OSError as error:
            raise RuntimeError(f"the upload of {str(source_path)!r} to {target_path!r} failed: {error}") from error

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        source = handle.raw.path(source_path)
        try:
            await asyncio.to_thread(_copy, source, target_path)
        except OSError as error:
            raise RuntimeError(f"the download of {source_path!r} failed: {error}") from error

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.STOPPED if handle.raw.closed else SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        place: Place = handle.raw
        place.closed = True
        for group in list(place.groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if place.spec.workdir is None:
            await asyncio.to_thread(_remove, place.folder)

    async def aclose(self) -> None:
        pass


def _check_variable(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name + value:
        raise ValueError(f"{name!r} and its value cannot be an environment variable")


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise OSError(f"{str(source)!r} is no file")
    if target.is_dir():
        raise OSError(f"{str(target)!r} is a directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as fresh:
        try:
            shutil.copyfile(source, fresh.name)
            shutil.copymode(source, fresh.name)
            os.replace(fresh.name, target)
        except BaseException:
            os.unlink(fresh.name)
            raise


def _remove(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
