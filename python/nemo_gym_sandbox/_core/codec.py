"""What goes over the border to the library: events, requests and results. See capi/ngs.h."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from .._timeouts import checked
from ..providers.base import SandboxResources, SandboxSidecarSpec, SandboxSpec

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


_INT_MAX = 2**63 - 1

_FOREVER = 1e15
"""Seconds beyond what the library can count; no float is as large as some integers."""

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
    text = _ENCODER.encode(request)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        odd = text[error.start]
    # Outside of the except clause: that error holds the whole request, secrets too.
    raise ValueError(f"a text has the character {odd!a}, which is no UTF-8: surrogates not allowed")


def decode(answer: bytes) -> dict[str, Any]:
    """What the library wrote as JSON."""
    return _DECODER.raw_decode(str(answer, "utf-8"))[0]


def encode_timeout(timeout_s: int | float | None) -> float | None:
    """Seconds as the library takes them: ``None`` is the provider's default, infinity becomes -1."""
    seconds = checked(timeout_s)
    return -1 if seconds is not None and seconds > _FOREVER else seconds


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
    if not isinstance(env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"environment variables must be a mapping, not {type(env).__name__}")
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
        "cpu": _number("resources.cpu", resources.cpu),
        "memory_mib": _count("resources.memory_mib", resources.memory_mib),
        "disk_gib": _count("resources.disk_gib", resources.disk_gib),
        "gpu": _count("resources.gpu", resources.gpu),
        "gpu_type": _text("resources.gpu_type", resources.gpu_type),
    }


def _number(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number or None, not {type(value).__name__}")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {value}; None is no limit")
    return value


def _count(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number or None, not {type(value).__name__}")
    if abs(value) > _INT_MAX:
        raise ValueError(f"{name} is larger than any machine's: {value}")
    return value


def _text(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, not {type(value).__name__}")
    return value


def _texts(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list of str or None, not {type(value).__name__}")
    texts = list(cast("list[Any]", value))
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a list of str, but {text!r} is {type(text).__name__}")
    return texts


def _encode_files(files: Any) -> list[list[str]]:
    if files is None:
        return []
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a mapping of paths to text, not {type(files).__name__}")
    entries: list[list[str]] = []
    for path, content in cast("Mapping[Any, Any]", files).items():
        if not isinstance(path, str) or not isinstance(content, str):
            raise TypeError(f"files are str to str, but {path!r} is {type(path).__name__} to {type(content).__name__}")
        entries.append([path, content])
    return entries


def _encode_metadata(metadata: Any) -> dict[str, str] | None:
    """Labels. Numbers are common among them, and have one text form."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    labels = cast("Mapping[Any, Any]", metadata)
    return {str(key): "" if value is None else str(value) for key, value in labels.items()}


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
    """A spec as the library takes it.

    Raises TypeError for a field of another type, ValueError for a number that is none; both name the field.
    """
    return {
        "image": _text("image", spec.image),
        "ttl_s": _number("ttl_s", spec.ttl_s),
        "ready_timeout_s": _number("ready_timeout_s", spec.ready_timeout_s),
        "workdir": _text("workdir", spec.workdir),
        "env": encode_env(spec.env),
        "files": _encode_files(spec.files),
        "metadata": _encode_metadata(spec.metadata),
        "resources": _encode_resources(spec.resources),
        "entrypoint": _texts("entrypoint", spec.entrypoint),
        "provider_options": spec.provider_options,
        "ports": list(spec.ports),
        "sidecars": [_encode_sidecar(sidecar) for sidecar in spec.sidecars],
    }
