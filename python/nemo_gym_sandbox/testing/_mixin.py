"""The cases as test methods."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nemo_gym_sandbox.testing._box import expect
from nemo_gym_sandbox.testing._runner import Session, cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_gym_sandbox.testing._backend import Backend
    from nemo_gym_sandbox.testing._case import Case


class SandboxConformance:
    """Base of a test class for one backend, which sets ``backend``. pytest is not needed to import it.

    The class gets one method for each case that has a meaning for the backend; none is skipped. All run on one event
    loop, which is closed after the last, and then nothing of it may be left in the test's own process: no
    descriptor and no child.
    """

    backend: ClassVar[Backend]
    _runner: ClassVar[asyncio.Runner | None] = None
    _session: ClassVar[Session]
    _before: ClassVar[tuple[set[str], set[str]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "backend" in cls.__dict__:
            for case in cases(cls.backend):
                setattr(cls, f"test_{case.name}", _method(case))

    @classmethod
    def new_runner(cls) -> asyncio.Runner:
        """What runs the cases; override it for another kind of event loop."""
        return asyncio.Runner()

    @classmethod
    def setup_class(cls) -> None:
        """Make what the cases share. What is made once per process is made before counting begins."""
        warm_up = Session(cls.backend)
        with cls.new_runner() as runner:
            runner.run(warm_up.warm_up())
        cls._before = _held()
        cls._runner = cls.new_runner()
        cls._session = Session(cls.backend)

    @classmethod
    def run_case(cls, case: Case) -> None:
        """Run one case on the class's loop."""
        if cls._runner is None:
            raise RuntimeError("setup_class() has not been called; a pytest older than 3.0?")
        cls._runner.run(cls._session.run(case))

    @classmethod
    def teardown_class(cls) -> None:
        """End what the cases share, and see that nothing is left."""
        runner, cls._runner = cls._runner, None
        if runner is None:
            return
        with runner:
            runner.run(cls._session.close())
        end = time.monotonic() + 5
        while left := _more(cls._before, _held()):
            expect(time.monotonic() < end, f"left in this process: {left}")
            time.sleep(0.05)


def _method(case: Case) -> Callable[[SandboxConformance], None]:
    def test(self: SandboxConformance) -> None:
        self.run_case(case)

    test.__name__ = f"test_{case.name}"
    test.__doc__ = case.body.__doc__
    return test


def _more(before: tuple[set[str], set[str]], now: tuple[set[str], set[str]]) -> list[str]:
    """What was added. A descriptor may have come back under another number."""
    descriptors = now[0] - before[0] if len(now[0]) > len(before[0]) else set[str]()
    return sorted(f"descriptor {name}" for name in descriptors) + sorted(f"process {pid}" for pid in now[1] - before[1])


def _held() -> tuple[set[str], set[str]]:
    """Descriptors and child processes of this process."""
    descriptors: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            descriptors.add(f"{entry.name} of {os.readlink(entry)}")
        except OSError:  # that of the listing itself
            continue
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            children.update((task / "children").read_text().split())
        except OSError:  # the thread has ended meanwhile
            continue
    return descriptors, children
