"""The backends that the command line looks at, and what it finds there."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox._cli._output import complain

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Iterable

    from nemo_gym_sandbox._core.native import NativeProvider

# pyright: reportPrivateUsage=false
# What providers offer for clearing up is no part of the public API, but this is the same package.

NAMES = ("docker", "local")
"""The backends of this machine, which are looked at unless one is named."""

REMOTE = ("opensandbox",)
"""Those that have to be named: they are the server's that the arguments and the environment name."""


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
    user: str = ""
    """Whose it is, where the backend keeps that."""

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return max(time.time() - self.created_at, 0.0)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "age_s": round(self.age_s, 3)}


class Backend:
    """One backend, as the arguments and the environment configure it."""

    def __init__(self, name: str, arguments: argparse.Namespace | None = None) -> None:
        self.name = name
        self._run: str = getattr(arguments, "run_id", None) or ""
        self._user: str = getattr(arguments, "user", None) or ""
        self._provider = _provider(name, arguments)

    async def list(self) -> list[Found]:
        """Every sandbox there that the arguments choose."""
        found = [Found(**one) for one in await self._provider._list(self._run, self._user)]
        if self.name in REMOTE and self._run:
            # Nobody sees from here whether an owner lives: whoever names the run says that it is over.
            found = [replace(one, kept="") for one in found]
        return found

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


def _provider(name: str, arguments: argparse.Namespace | None) -> NativeProvider:
    # Imported here: the library is loaded by the first provider, and --help needs none.
    if name == "docker":
        from nemo_gym_sandbox.providers.docker import DockerProvider

        return DockerProvider()
    if name == "opensandbox":
        from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

        connection = {key: getattr(arguments, key, None) for key in ("domain", "protocol")}
        tls_verify = bool(getattr(arguments, "tls_verify", False))
        return OpenSandboxProvider(connection={**connection, "tls_verify": tls_verify})
    from nemo_gym_sandbox.providers.local import LocalProvider

    return LocalProvider()


@contextlib.asynccontextmanager
async def opened(name: str, arguments: argparse.Namespace | None = None) -> AsyncGenerator[Backend]:
    """A backend for the length of a block."""
    backend = Backend(name, arguments)
    try:
        yield backend
    finally:
        await backend.aclose()


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose among sandboxes."""
    parser.add_argument(
        "--provider", choices=(*NAMES, *REMOTE), help="only this backend; those of this machine otherwise"
    )
    parser.add_argument("--run-id", metavar="ID", help="only sandboxes of the run with this name ($NEMO_GYM_RUN_ID)")
    server = parser.add_argument_group("opensandbox", "with the server's key in $OPEN_SANDBOX_API_KEY")
    server.add_argument("--user", metavar="NAME", help="only sandboxes of this user")
    server.add_argument("--domain", metavar="HOST", help="the server: host[:port] or a URL ($OPEN_SANDBOX_DOMAIN)")
    server.add_argument("--protocol", choices=("http", "https"), help="http unless the server is given as a URL")
    server.add_argument("--tls-verify", action="store_true", help="check the server's certificate")


def unfit(arguments: argparse.Namespace) -> str:
    """What is wrong with the arguments as a whole; empty when nothing is."""
    for name in ("run_id", "user"):
        value: str | None = getattr(arguments, name)
        if value is not None and not value.strip():
            return f"--{name.replace('_', '-')} must not be blank"
    if arguments.provider not in REMOTE and (
        arguments.user or arguments.domain or arguments.protocol or arguments.tls_verify
    ):
        return "--user, --domain, --protocol and --tls-verify are for --provider opensandbox"
    return ""


def chosen(arguments: argparse.Namespace) -> Iterable[str]:
    """The names of the backends to look at."""
    return NAMES if arguments.provider is None else (arguments.provider,)


def excuse(error: BaseException, arguments: argparse.Namespace) -> bool:
    """Report a backend that failed. True when that is no failure: nobody asked for it, and the machine has none."""
    absent = arguments.provider is None and getattr(error, "kind", "") == "not_found"
    complain(f"note: {error}" if absent else str(error))
    return absent
