"""Drives the official SDK for tests in another process: one JSON request a line, one JSON answer a line.

It runs with the interpreter that has the SDK and imports nothing of ours. The first line is the connection. A request is
``{"op": name, ...}``, an answer ``{"ok": value}`` or ``{"error": class, "message": text}``. Bytes are base64.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from datetime import timedelta
from typing import Any

from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import SandboxFilter

from opensandbox import Sandbox, SandboxManager


class Driver:
    """One method per operation. Sandboxes are kept by their ids."""

    def __init__(self, domain: str, api_key: str, use_server_proxy: bool) -> None:
        self._connection = ConnectionConfig(
            domain=domain, api_key=api_key, use_server_proxy=use_server_proxy, disable_metrics=True
        )
        self._held: dict[str, Sandbox] = {}

    def _hold(self, sandbox: Sandbox) -> str:
        self._held[sandbox.id] = sandbox
        return sandbox.id

    async def create(self, image: str, timeout_s: float = 600, **more: Any) -> str:
        timeout = timedelta(seconds=timeout_s)
        return self._hold(await Sandbox.create(image, timeout=timeout, connection_config=self._connection, **more))

    async def connect(self, box: str) -> str:
        return self._hold(await Sandbox.connect(box, connection_config=self._connection))

    async def resume(self, box: str) -> str:
        return self._hold(await Sandbox.resume(box, connection_config=self._connection))

    async def pause(self, box: str) -> None:
        await self._held[box].pause()

    async def kill(self, box: str) -> None:
        await self._held[box].kill()

    async def info(self, box: str) -> dict[str, Any]:
        info = await self._held[box].get_info()
        return {
            "state": info.status.state,
            "metadata": info.metadata or {},
            "expires_at": info.expires_at.timestamp() if info.expires_at else None,
            "image": info.image.image if info.image else None,
            "entrypoint": info.entrypoint,
        }

    async def renew(self, box: str, timeout_s: float) -> float:
        return (await self._held[box].renew(timedelta(seconds=timeout_s))).expires_at.timestamp()

    async def patch_metadata(self, box: str, patch: dict[str, str | None]) -> dict[str, str]:
        return (await self._held[box].patch_metadata(patch)).metadata or {}

    async def list(self, metadata: dict[str, str]) -> list[str]:
        manager = await SandboxManager.create(connection_config=self._connection)
        found = await manager.list_sandbox_infos(SandboxFilter(metadata=metadata))
        return [info.id for info in found.sandbox_infos]

    async def endpoint(self, box: str, port: int) -> str:
        return (await self._held[box].get_endpoint(port)).endpoint

    async def run(self, box: str, command: str, timeout_s: float | None = None, **more: Any) -> dict[str, Any]:
        opts = RunCommandOpts(timeout=None if timeout_s is None else timedelta(seconds=timeout_s), **more)
        done = await self._held[box].commands.run(command, opts=opts)
        return {
            "id": done.id,
            "exit_code": done.exit_code,
            "stdout": [message.text for message in done.logs.stdout],
            "stderr": [message.text for message in done.logs.stderr],
            "error": [done.error.name, done.error.value] if done.error else None,
        }

    async def background(self, box: str, command: str) -> str:
        done = await self._held[box].commands.run(command, opts=RunCommandOpts(background=True))
        return str(done.id)

    async def command_status(self, box: str, command_id: str) -> dict[str, Any]:
        status = await self._held[box].commands.get_command_status(command_id)
        return {"running": status.running, "exit_code": status.exit_code, "error": status.error}

    async def command_logs(self, box: str, command_id: str) -> str:
        return (await self._held[box].commands.get_background_command_logs(command_id)).content

    async def interrupt(self, box: str, command_id: str) -> None:
        await self._held[box].commands.interrupt(command_id)

    async def in_session(self, box: str, commands: list[str]) -> list[list[str]]:
        service = self._held[box].commands
        session = await service.create_session()
        try:
            done = [await service.run_in_session(session, command) for command in commands]
        finally:
            await service.delete_session(session)
        return [[message.text for message in each.logs.stdout] for each in done]

    async def write(self, box: str, path: str, data: str, mode: int = 755) -> None:
        await self._held[box].files.write_file(path, base64.b64decode(data), mode=mode)

    async def read(self, box: str, path: str) -> str:
        return base64.b64encode(await self._held[box].files.read_bytes(path)).decode()

    async def file_info(self, box: str, path: str) -> dict[str, Any]:
        info = (await self._held[box].files.get_file_info([path]))[path]
        return {"mode": info.mode, "owner": info.owner, "size": info.size}

    async def snapshot(self, box: str) -> str:
        manager = await SandboxManager.create(connection_config=self._connection)
        made = await manager.create_snapshot(box)
        while (made := await manager.get_snapshot(made.id)).status.state == "Creating":  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
        return made.id if made.status.state == "Ready" else made.status.state

    async def delete_snapshot(self, snapshot: str) -> None:
        manager = await SandboxManager.create(connection_config=self._connection)
        await manager.delete_snapshot(snapshot)

    async def metrics(self, box: str) -> dict[str, Any]:
        return (await self._held[box].get_metrics()).model_dump(mode="json")


async def main() -> None:
    lines = iter(sys.stdin.readline, "")
    driver = Driver(**json.loads(next(lines)))
    for line in lines:
        request = json.loads(line)
        try:
            answer = {"ok": await getattr(driver, request.pop("op"))(**request)}
        except Exception as e:
            answer = {"error": type(e).__name__, "message": str(e)}
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


asyncio.run(main())
