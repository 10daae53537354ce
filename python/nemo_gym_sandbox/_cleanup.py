"""Waiting for clean-up that must happen even while its caller is being cancelled, and must not wait for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class LoopLock:
    """A lock that follows its owner from one event loop to the next; asyncio's own belongs to the first that waits."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> asyncio.Lock:
        """The lock of the running loop. A holder in a loop that has ended holds nothing."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock


async def finish(work: Coroutine[Any, Any, object], timeout_s: float) -> None:
    """Run clean-up to its end, for at most ``timeout_s`` seconds, however often the caller is cancelled meanwhile.

    Its error is raised; TimeoutError when the time is over (it is cancelled then). A cancellation that came during the
    clean-up is raised after it, and goes before its error.
    """
    task = asyncio.ensure_future(work)
    deadline = asyncio.get_running_loop().time() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            task.exception()  # seen: the cancellation goes before it
        raise cancelled
    if not task.done():
        task.cancel()
        raise TimeoutError(f"clean-up did not end within {timeout_s:g}s")
    task.result()
