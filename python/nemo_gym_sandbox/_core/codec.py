"""What goes over the border to the library: events, requests and results. See capi/ngs.h."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ..providers.base import SandboxResources, SandboxSidecarSpec, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EVENT", "Reply", "encode", "encode_env", "encode_spec", "encode_timeout", "encode_user"]

EVENT = struct.Struct("<QIHHiI")
"""id, length of the payload, kind, flags, status, aux; the payload follows, padded to 8."""

EVENT_MAX = 128 << 10

DONE = 1
READABLE = 2
WRITABLE = 3
STREAM_OPEN = 4
LOG = 6

NOOP = 0
PROVIDER_CLOSE = 2
CREATE = 3
CONNECT = 4
EXEC = 5
UPLOAD = 6
DOWNLOAD = 7
STATUS = 8
STOP = 9
SERIALIZE = 10
DISCONNECT = 11
PAUSE = 12
RESUME = 13
ENDPOINT = 14
SET_DEFAULTS = 15
PTY_OPEN = 20
PTY_ATTACH = 21
PTY_RESIZE = 22
PTY_SIGNAL = 23
PTY_WAIT = 24
PTY_DETACH = 25
PTY_REATTACH = 26
PTY_INFO = 27
PTY_CLOSE = 28
PTY_DIAL = 29
LIST = 32
REAP = 33
EXAMINE = 34
TEST = 1000


# json.dumps() makes one for every call that is not all defaults, and json.loads() looks for encodings and blanks.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder()


class Reply(NamedTuple):
    """The outcome of an operation. ``status`` is 0 or why it failed."""

    status: int
    aux: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload of a reply that is JSON."""
        return decode(self.payload) if self.payload else {}

    def framed(self) -> tuple[dict[str, Any], memoryview]:
        """The payload of a command's result: its description and the outputs that came with it."""
        size = int.from_bytes(self.payload[:4], "little")
        return decode(self.payload[4 : 4 + size]), memoryview(self.payload)[4 + size :]


def encode(request: Mapping[str, Any]) -> bytes:
    """A request as JSON.

    Raises TypeError for what JSON can't say, ValueError for NaN and for text that is not UTF-8.
    """
    return _ENCODER.encode(request).encode()


def decode(answer: bytes) -> dict[str, Any]:
    """What the library wrote as JSON."""
    return _DECODER.raw_decode(str(answer, "utf-8"))[0]


def encode_timeout(timeout_s: int | float | None) -> float | None:
    """Seconds as the library takes them: ``None`` is the provider's default, infinity becomes -1."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"timeout_s must be a number of seconds or None, not {type(timeout_s).__name__}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    return -1 if math.isinf(timeout_s) else timeout_s


def encode_user(user: str | int | None) -> str:
    """A user as text: "root" and 0 are both "0", and "" is the default user."""
    if user is None:
        return ""
    if isinstance(user, bool) or not isinstance(user, (str, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"user must be a name, a number or None, not {type(user).__name__}")
    return "0" if user == "root" else str(user)


def encode_env(env: Mapping[str, str] | None) -> dict[str, str] | None:
    """Environment variables; what is no text is refused here, without showing a value, which may be secret."""
    if env is None:
        return None
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"environment variables are str to str, but {key!r} is {type(key).__name__} to {type(value).__name__}"
            )
    return dict(env)


def _encode_resources(resources: SandboxResources | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(resources, SandboxResources):
        resources = SandboxResources.from_mapping(resources)
    return {
        "cpu": resources.cpu,
        "memory_mib": resources.memory_mib,
        "disk_gib": resources.disk_gib,
        "gpu": resources.gpu,
        "gpu_type": resources.gpu_type,
    }


def _encode_sidecar(sidecar: SandboxSidecarSpec | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(sidecar, SandboxSidecarSpec):
        sidecar = SandboxSidecarSpec(**sidecar)
    return {
        "name": sidecar.name,
        "image": sidecar.image,
        "env": encode_env(sidecar.env),
        "resources": _encode_resources(sidecar.resources),
    }


def encode_spec(spec: SandboxSpec) -> dict[str, Any]:
    """A spec as the library takes it."""
    return {
        "image": spec.image,
        "ttl_s": spec.ttl_s,
        "ready_timeout_s": spec.ready_timeout_s,
        "workdir": spec.workdir,
        "env": encode_env(spec.env),
        "files": [[path, content] for path, content in spec.files.items()],
        "metadata": spec.metadata,
        "resources": _encode_resources(spec.resources),
        "entrypoint": spec.entrypoint,
        "provider_options": spec.provider_options,
        "ports": list(spec.ports),
        "sidecars": [_encode_sidecar(sidecar) for sidecar in spec.sidecars],
    }
