"""Reading a session until something is seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_gym_sandbox import SandboxPtySession

PATIENCE_S = 30


async def until(session: SandboxPtySession, want: bytes, *, stderr: bool = False) -> bytes:
    """Everything up to the first sight of ``want``, which has to come."""
    got = b""
    read = session.read_stderr if stderr else session.read
    async with asyncio.timeout(PATIENCE_S):
        while want not in got:
            chunk = await read()
            assert chunk, f"the end came before {want!r}: {got[-300:]!r}"
            got += chunk
    return got


async def rest(session: SandboxPtySession) -> bytes:
    """All output to the end."""
    got = b""
    async with asyncio.timeout(PATIENCE_S):
        async for chunk in session:
            got += chunk
    return got


async def reached(state: Callable[[], bool]) -> None:
    """Wait for a state that nothing reports."""
    async with asyncio.timeout(PATIENCE_S):
        while not state():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
