"""Turns what the library reports into the exceptions of the API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ..providers.base import SandboxCreateError, SandboxCreateVerificationError, SandboxPtyError
from . import codec

__all__ = ["SandboxFileError", "SandboxFileNotFoundError", "exception_for", "failure"]

_PLAIN: dict[str, type[BaseException]] = {
    "pty": SandboxPtyError,
    "not_supported": NotImplementedError,
    "timeout": TimeoutError,
    "invalid": ValueError,
    "unknown_key": TypeError,
    "canceled": asyncio.CancelledError,
}


class SandboxFileError(RuntimeError, OSError):
    """A file could not be uploaded or downloaded. It is a RuntimeError as for every other failed operation of a
    sandbox, and an OSError as callers expect of files."""


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """The file to upload or download does not exist."""


_FILE: dict[str, type[BaseException]] = {
    "not_found": SandboxFileNotFoundError,
    "invalid": SandboxFileError,
    "sandbox": SandboxFileError,
    "internal": SandboxFileError,
}

_PTY = frozenset(range(codec.PTY_OPEN, codec.PTY_DIAL + 1))
"""Operations on terminal sessions."""

_NOT_ABOUT_CREATING = frozenset({"verification", "not_supported", "invalid", "unknown_key", "canceled", "closed"})
"""Kinds that keep their exception when a sandbox is made; every other one there means that it could not be."""

_NOT_THERE = frozenset({"not_found", "sandbox"})
"""Kinds that say, when a sandbox is taken up, that it does not live."""


def exception_for(
    about: dict[str, Any],
    op: int | None = None,
    create_error: type[SandboxCreateError] = SandboxCreateError,
    verification_error: type[SandboxCreateVerificationError] = SandboxCreateVerificationError,
) -> BaseException:
    """The exception for a failure's description. Its ``kind`` attribute keeps the library's word for it."""
    kind = str(about.get("kind", "internal"))
    message = str(about.get("message") or "the sandbox library reported an error without a text")
    if (
        kind == "create"
        or (op == codec.CREATE and kind not in _NOT_ABOUT_CREATING)
        or (op == codec.CONNECT and kind in _NOT_THERE)
    ):
        error: BaseException = create_error(message)
    elif kind == "verification":
        error = verification_error(message)
    elif op in (codec.UPLOAD, codec.DOWNLOAD) and kind in _FILE:
        error = _FILE[kind](message)
    else:
        other = SandboxPtyError if op in _PTY else RuntimeError
        error = _PLAIN.get(kind, other)(message)
    error.kind = kind  # type: ignore[attr-defined]
    error.retries = int(about.get("retries", 0))  # type: ignore[attr-defined]
    return error


def failure(
    reply: codec.Reply,
    op: int,
    create_error: type[SandboxCreateError] = SandboxCreateError,
    verification_error: type[SandboxCreateVerificationError] = SandboxCreateVerificationError,
) -> BaseException:
    """The exception for a reply that is a failure."""
    try:
        about = json.loads(reply.payload)
    except ValueError:
        about = {"message": f"operation {op} failed with code {reply.status}"}
    return exception_for(about, op, create_error, verification_error)
