"""The backends that the command line looks at, and what it finds there."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox._cli._output import complain

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Iterable

    from nemo_gym_sandbox._core.native import NativeProvider

# pyright: reportPrivateUsage=false
# What providers offer for clearing up is no part of the public API, but this is the same package.

NAMES = ("docker", "local")


@dataclass(frozen=True)
class Found:
    """A sandbox that some process made."""

    sandbox_id: str
    provider: str
    run: str
    host: str
    pid: int
    owner: str
    """``alive``, ``dead`` or ``unknown``, where it can't be seen from here."""
    created_at: float
    """Seconds since 1970."""
    expires_at: float
    """Likewise; 0 for one that has no end."""
    status: str
    leftover: bool
    """There is nothing but files of it."""
    kept: str
    """Why it should not be reaped; empty when it can be."""

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return max(time.time() - self.created_at, 0.0)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "age_s": round(self.age_s, 3)}


class Backend:
    """One backend, as the environment configures it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._provider = _provider(name)

    async def list(self) -> list[Found]:
        """Every sandbox there."""
        return [Found(**found) for found in await self._provider._list()]

    async def reap(self, sandbox_id: str) -> None:
        """End a sandbox and remove all of it."""
        await self._provider._reap(sandbox_id)

    async def tidy(self) -> None:
        """Forget what dead processes noted about sandboxes that are gone."""
        await self._provider._tidy()

    async def examine(self) -> list[dict[str, str]]:
        """What it would work with."""
        return await self._provider._examine()

    async def aclose(self) -> None:
        """Let go of the backend."""
        await self._provider.aclose()


def _provider(name: str) -> NativeProvider:
    # Imported here: the library is loaded by the first provider, and --help needs none.
    if name == "docker":
        from nemo_gym_sandbox.providers.docker import DockerProvider

        return DockerProvider()
    from nemo_gym_sandbox.providers.local import LocalProvider

    return LocalProvider()


@contextlib.asynccontextmanager
async def opened(name: str) -> AsyncGenerator[Backend]:
    """A backend for the length of a block."""
    backend = Backend(name)
    try:
        yield backend
    finally:
        await backend.aclose()


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose among sandboxes."""
    parser.add_argument("--provider", choices=NAMES, help="only this backend; both otherwise")
    parser.add_argument("--run-id", metavar="ID", help="only sandboxes of the run with this name ($NEMO_GYM_RUN_ID)")


def chosen(arguments: argparse.Namespace) -> Iterable[str]:
    """The names of the backends to look at."""
    return NAMES if arguments.provider is None else (arguments.provider,)


def matches(found: Found, arguments: argparse.Namespace) -> bool:
    """Whether a sandbox is one of those that the arguments choose."""
    return arguments.run_id is None or found.run == arguments.run_id


def excuse(error: BaseException, arguments: argparse.Namespace) -> bool:
    """Report a backend that failed. True when that is no failure: nobody asked for it, and the machine has none."""
    absent = arguments.provider is None and getattr(error, "kind", "") == "not_found"
    complain(f"note: {error}" if absent else str(error))
    return absent
