"""Turns what the library reports into the exceptions of the API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ..providers.base import SandboxCreateError, SandboxCreateVerificationError, SandboxPtyError
from . import codec

__all__ = ["exception_for", "failure"]

_PLAIN: dict[str, type[BaseException]] = {
    "pty": SandboxPtyError,
    "verification": SandboxCreateVerificationError,
    "not_supported": NotImplementedError,
    "timeout": TimeoutError,
    "invalid": ValueError,
    "unknown_key": TypeError,
    "canceled": asyncio.CancelledError,
}

_NOT_ABOUT_CREATING = frozenset({"verification", "not_supported", "invalid", "unknown_key", "canceled", "closed"})
"""Kinds that keep their exception when a sandbox is made; every other one there means that it could not be."""


def exception_for(
    about: dict[str, Any], op: int | None = None, create_error: type[SandboxCreateError] = SandboxCreateError
) -> BaseException:
    """The exception for a failure's description. Its ``kind`` attribute keeps the library's word for it."""
    kind = str(about.get("kind", "internal"))
    message = str(about.get("message") or "the sandbox library reported an error without a text")
    if kind == "create" or (op == codec.CREATE and kind not in _NOT_ABOUT_CREATING):
        error: BaseException = create_error(message)
    elif kind == "not_found" and op in (codec.UPLOAD, codec.DOWNLOAD):
        error = FileNotFoundError(message)
    else:
        error = _PLAIN.get(kind, RuntimeError)(message)
    error.kind = kind  # type: ignore[attr-defined]
    return error


def failure(reply: codec.Reply, op: int, create_error: type[SandboxCreateError] = SandboxCreateError) -> BaseException:
    """The exception for a reply that is a failure."""
    try:
        about = json.loads(reply.payload)
    except ValueError:
        about = {"message": f"operation {op} failed with code {reply.status}"}
    return exception_for(about, op, create_error)
