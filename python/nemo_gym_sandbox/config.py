"""From a merged configuration to what ``create_provider`` takes.

A provider block is a mapping with one provider name in it, beside reserved keys::

    sandbox:
      docker: {exec: {default_timeout_s: 60}}
      default_metadata: {sandbox-api: docker-engine}

OmegaConf containers are taken as the mappings that they are, with their interpolations resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from nemo_gym_sandbox.providers._options import plain_values

__all__ = ["RESERVED_KEYS", "resolve_provider_config", "resolve_provider_metadata"]

RESERVED_KEYS: Final = frozenset({"default_metadata"})


def resolve_provider_config(
    ref: str | Mapping[str, Any], named: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """A fresh, plain ``{provider name: keyword arguments}``, without reserved keys.

    ``ref`` is such a block, or the name of one at the top level of ``named``, the merged configuration. Raises
    ValueError for a name that is empty or not there and for a block without exactly one provider key, TypeError for
    anything else.
    """
    entries = _block(ref, named)
    names = _provider_keys(entries)
    if len(names) != 1:
        raise ValueError(f"a sandbox block must have exactly one provider key, got {names}")
    arguments = entries[names[0]]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise TypeError(
            f"the config of sandbox provider {names[0]!r} must be a mapping, not {type(arguments).__name__}"
        )
    return {names[0]: cast("dict[str, Any]", plain_values(cast("Mapping[Any, Any]", arguments)))}


def resolve_provider_metadata(ref: str | Mapping[str, Any], named: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The block's ``default_metadata`` as a fresh dict, empty when there is none.

    Raises ValueError when it is not a mapping, and what :func:`resolve_provider_config` raises for ``ref``.
    """
    metadata = _block(ref, named).get("default_metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"default_metadata must be a mapping, not {type(metadata).__name__}")
    return cast("dict[str, Any]", plain_values(cast("Mapping[Any, Any]", metadata)))


def _block(ref: Any, named: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(ref, Mapping):
        return cast("Mapping[str, Any]", ref)
    if not isinstance(ref, str):
        raise TypeError(f"a sandbox provider must be a name reference or an inline block, not {type(ref).__name__}")
    if not ref.strip():
        raise ValueError("a sandbox provider reference must be a non-empty string")
    entry: Any = named[ref] if named is not None and ref in named else None
    if isinstance(entry, Mapping):
        return cast("Mapping[str, Any]", entry)
    candidates = ", ".join(repr(name) for name in _candidates(named)) or "none"
    raise ValueError(
        f"sandbox provider block {ref!r} is not defined in the merged config; blocks that could be meant: {candidates}"
    )


def _provider_keys(entries: Mapping[str, Any]) -> list[str]:
    return [str(key) for key in entries if key not in RESERVED_KEYS]


def _candidates(named: Mapping[str, Any] | None) -> list[str]:
    """Top-level blocks with exactly one provider key."""
    found: list[str] = []
    for name in named or {}:
        try:
            entry: Any = cast("Mapping[str, Any]", named)[name]
        except Exception:  # an interpolation that does not resolve is somebody else's
            continue
        if isinstance(entry, Mapping) and len(_provider_keys(cast("Mapping[str, Any]", entry))) == 1:
            found.append(str(name))
    return sorted(found)
