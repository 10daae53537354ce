"""Collects the cases and runs them, with pytest or without."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_gym_sandbox.testing import (
    _directory_cases,
    _exec_cases,
    _file_cases,
    _input_cases,
    _lifecycle_cases,
    _output_cases,
    _share_cases,
    _terminal_cases,
    _timeout_cases,
)
from nemo_gym_sandbox.testing._box import Box

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from nemo_gym_sandbox.testing._backend import Backend
    from nemo_gym_sandbox.testing._case import Case

_FILES = (
    _exec_cases,
    _input_cases,
    _output_cases,
    _timeout_cases,
    _file_cases,
    _directory_cases,
    _terminal_cases,
    _lifecycle_cases,
    _share_cases,
)


def cases(backend: Backend | None = None) -> list[Case]:
    """All cases in order; with a backend those that have a meaning for it."""
    every = [case for file in _FILES for case in file.GROUP.cases]
    return every if backend is None else [case for case in every if case.fits(backend)]


class Session:
    """Runs cases one after the other, those that can in one sandbox."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._shared: Box | None = None

    async def run(self, case: Case) -> None:
        """Run a case; raises when it fails. One that hangs fails after a time."""
        async with asyncio.timeout(9 * self._backend.deadline_s):
            if case.own:
                box = Box(self._backend)
                try:
                    await case.body(box)
                finally:
                    await box.close()
                return
            await case.body(await self._running())

    async def _running(self) -> Box:
        if self._shared is None:
            box = Box(self._backend)
            try:
                await box.start()
            except BaseException:
                await box.close()
                raise
            self._shared = box
        return self._shared

    async def warm_up(self) -> None:
        """Make and end one sandbox."""
        await (await self._running()).ok("true")
        await self.close()

    async def close(self) -> None:
        """End the sandbox that cases shared."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: Case
    backend: Backend
    error: BaseException | None
    """None when it passed."""
    took_s: float

    @property
    def passed(self) -> bool:
        """Whether the provider kept this failure away."""
        return self.error is None


async def run(backend: Backend, chosen: Sequence[Case] | None = None) -> AsyncGenerator[Outcome]:
    """Run the cases that have a meaning for a backend, or those of them that are chosen, and give each outcome."""
    session = Session(backend)
    try:
        for case in cases(backend) if chosen is None else [case for case in chosen if case.fits(backend)]:
            began = time.monotonic()
            error: BaseException | None = None
            try:
                await session.run(case)
            except Exception as failure:
                error = failure
            yield Outcome(case, backend, error, time.monotonic() - began)
    finally:
        await session.close()
