"""An event loop in a thread of its own, for the blocking face of the API."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOGGER = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3600.0
"""How long one call waits for its operation."""

CLOSE_TIMEOUT_S = 5.0
"""How long closing waits for the thread, and a given-up call for its operation's clean-up."""

SIGNALS_S = 0.5
"""How often a thread that waits looks for signals."""

EXIT_TIMEOUT_S = 30.0
"""How long the interpreter's exit waits for what was left open, all of it together."""

P = ParamSpec("P")
T = TypeVar("T")

_open: set[LoopThread] = set()


class LoopThread:
    """Runs coroutines for threads that have no event loop.

    Raises RuntimeError when made, or used, where an event loop is running: blocking it would stop everything else.
    """

    def __init__(self) -> None:
        refuse_running_loop()
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._stopping = False  # the loop is to run no more; looked at in its thread only
        self._ended = False  # the loop runs no more
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()  # of the two above
        self._farewell: Callable[[], Awaitable[object]] | None = None
        self._thread = threading.Thread(target=self._main, name="nemo-gym-sandbox", daemon=True)
        self._thread.start()
        _open.add(self)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._run_until_stopped()
        finally:
            with self._lock:
                self._ended = True
                left = list(self._calls)
            for call in left:
                call.loop_ended()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            self._loop.close()
            _open.discard(self)

    def _run_until_stopped(self) -> None:
        while not self._stopping:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A callback's. It breaks out of the loop, and is also what its task ended with: so it reaches the
                # thread that waits for that, which is the one to exit. The sandbox has yet to be stopped.
                continue

    def _stop_loop(self) -> None:
        self._stopping = True
        self._loop.stop()

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function in the loop and wait for what it returns or raises.

        TimeoutError after an hour, and the operation is cancelled; so it is when this thread is interrupted.
        """
        refuse_running_loop()
        if self._closed:
            raise _closed_error()
        if not self._thread.is_alive():
            raise RuntimeError(
                "this Sandbox was made in another process and does not work after fork(); "
                "make one here, or use multiprocessing's 'spawn' or 'forkserver'"
            )
        call = _Call(self._loop, function, args, kwargs)
        with self._lock:
            if self._ended:
                raise _closed_error()
            self._calls.add(call)
        try:
            return call.wait()
        finally:
            with self._lock:
                self._calls.discard(call)

    def on_abandoned(self, farewell: Callable[[], Awaitable[object]]) -> None:
        """What to await when the owner is gone, or the interpreter exits, without having closed the loop."""
        self._farewell = farewell
        # What is registered last runs first: this has to come before the shutdown of what providers are built on.
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)

    def abandon(self) -> None:
        """Say farewell and close, without waiting: it may be the garbage collector, in any thread, that calls."""
        if self._closed or not self._thread.is_alive():
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
            self._loop.call_soon_threadsafe(self._begin_farewell)

    def _begin_farewell(self) -> None:
        task = self._loop.create_task(self._say_farewell())
        task.add_done_callback(lambda _: self._stop_loop())

    async def _say_farewell(self) -> None:
        if self._farewell is None:
            return
        try:
            await self._farewell()
        except Exception as error:
            LOGGER.warning("a sandbox that was not stopped could not be stopped afterwards: %s", error)

    def close(self) -> None:
        """End the thread; one that does not end in time is left behind. Repeating is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop_loop)
            self.join(CLOSE_TIMEOUT_S)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout_s))


class _Call:
    """One operation that a thread waits for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._loop = loop
        self._work = (function, args, kwargs)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._done: Future[Any] = Future()

    def _begin(self) -> None:
        if self._cancelled:
            self._settle(asyncio.CancelledError())
            return
        self._task = self._loop.create_task(self._operate())
        self._task.add_done_callback(self._end)

    async def _operate(self) -> Any:
        function, args, kwargs = self._work
        return await function(*args, **kwargs)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._settle(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._settle(error)
        elif not self._done.done():
            self._done.set_result(task.result())

    def _settle(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def loop_ended(self) -> None:
        """Called in the loop's thread when it runs no more: another thread closed it under this operation."""
        self._settle(_closed_error())

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> Any:
        try:  # from here on an interrupt cancels what was begun
            self._loop.call_soon_threadsafe(self._begin)
            self._wait(CALL_TIMEOUT_S)
        except BaseException:
            if not self._done.done():
                self._give_up()
            raise
        if not self._done.done():
            self._give_up()
            raise TimeoutError(f"timed out waiting for the sync loop after {CALL_TIMEOUT_S:g}s")
        return self._done.result()

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._done.done() and (left := deadline - time.monotonic()) > 0:
            # In turns: a signal that comes as this thread is about to wait does not wake it, and runs its handler after.
            with contextlib.suppress(TimeoutError):
                self._done.exception(min(left, SIGNALS_S))

    def _give_up(self) -> None:
        """Cancel the operation and let its clean-up run, for a while."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)
            with contextlib.suppress(Exception, asyncio.CancelledError):
                self._done.result(CLOSE_TIMEOUT_S)


def _closed_error() -> RuntimeError:
    return RuntimeError("the sandbox is stopped or disconnected: its sync loop is closed")


def refuse_running_loop() -> None:
    """Raise RuntimeError in a thread whose event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("Sandbox blocks, and an event loop is running here: use AsyncSandbox in async code")


def _at_exit() -> None:
    left = [thread for thread in _open if not thread.closed]
    for thread in left:
        thread.abandon()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for thread in list(_open):
        thread.join(deadline - time.monotonic())
