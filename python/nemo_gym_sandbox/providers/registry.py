"""Finds provider classes by name: those registered here, the built-in ones, and those of installed packages.

Other packages offer theirs as entry points of the group ``nemo_gym.sandbox_providers``. Listing and looking up import
no backend's library.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from nemo_gym_sandbox.providers.base import SandboxProvider

__all__ = ["create_provider", "get_provider_class", "list_providers", "register_provider"]

LOGGER = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "nemo_gym.sandbox_providers"

_PACKAGE = "nemo_gym_sandbox.providers"
_BUILT_IN: Final[dict[str, tuple[str, str]]] = {
    "apptainer": (f"{_PACKAGE}.apptainer", "ApptainerProvider"),
    "daytona": (f"{_PACKAGE}.daytona", "DaytonaProvider"),
    "docker": (f"{_PACKAGE}.docker", "DockerProvider"),
    "e2b": (f"{_PACKAGE}.e2b", "E2BProvider"),
    "ecs_fargate": (f"{_PACKAGE}.ecs_fargate", "EcsFargateProvider"),
    "enroot": (f"{_PACKAGE}.enroot", "EnrootProvider"),
    "local": (f"{_PACKAGE}.local", "LocalProvider"),
    "opensandbox": (f"{_PACKAGE}.opensandbox", "OpenSandboxProvider"),
    "openshell": (f"{_PACKAGE}.openshell", "OpenShellProvider"),
}

_registered: dict[str, type[Any]] = {}
_entry_points: dict[str, EntryPoint] | None = None


def register_provider(name: str, cls: type[Any], override: bool = False) -> None:
    """Make a provider class known by a name.

    Raises ValueError for an empty name, and for one that a registered or built-in provider has unless ``override``.
    """
    given: Any = name
    if not isinstance(given, str) or not given.strip():
        raise ValueError("a sandbox provider name must be non-empty")
    if not override and (name in _registered or name in _BUILT_IN):
        raise ValueError(f"Sandbox provider {name!r} is already registered; pass override=True to replace it")
    _registered[name] = cls


def get_provider_class(name: str) -> type[SandboxProvider]:
    """The class of a provider: a registered one, else a built-in one, else an installed package's.

    Raises ValueError, listing what there is, for an unknown name.
    """
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        from importlib import import_module

        module, attribute = _BUILT_IN[name]
        return getattr(import_module(module), attribute)
    entry_point = _discover().get(name)
    if entry_point is not None:
        return entry_point.load()
    from nemo_gym_sandbox.providers._options import nearest

    available = list_providers()
    raise ValueError(f"Unknown sandbox provider {name!r}; available providers: {available}{nearest(name, available)}")


def list_providers() -> list[str]:
    """The names of all providers, sorted, whether or not what they need is installed."""
    return sorted({*_registered, *_BUILT_IN, *_discover()})


def create_provider(provider: Mapping[str, Any]) -> SandboxProvider:
    """Make a provider from ``{name: keyword arguments}``; None stands for no arguments.

    Raises TypeError or ValueError when the mapping has another shape, TypeError for an argument that the class does not
    take, and whatever the class raises.
    """
    given: Any = provider
    if not isinstance(given, Mapping):
        raise TypeError(f"a sandbox provider config must be a mapping, not {type(given).__name__}")
    entries = cast("Mapping[Any, Any]", given)
    if len(entries) != 1:
        raise ValueError(f"a sandbox provider config must have exactly one provider name, got {list(entries)}")
    ((name, arguments),) = entries.items()
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a sandbox provider name must be a non-empty string, got {name!r}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the config of sandbox provider {name!r} must be a mapping, not {type(arguments).__name__}")
    from nemo_gym_sandbox.providers._options import check_keywords, plain_values

    cls: Any = get_provider_class(name)
    keywords = {str(key): plain_values(value) for key, value in cast("Mapping[Any, Any]", arguments).items()}
    check_keywords(cls, keywords)
    return cls(**keywords)


def _discover() -> dict[str, EntryPoint]:
    """The entry points of installed packages, looked for once."""
    global _entry_points
    if _entry_points is None:
        _entry_points = _find_entry_points()
    return _entry_points


def _find_entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        name = entry_point.name
        other = found.get(name)
        if other is not None and _distribution(other) != _distribution(entry_point):
            both = sorted([_distribution(other), _distribution(entry_point)])
            raise ValueError(
                f"Duplicate sandbox provider entry point {name!r}: both {both[0]} and {both[1]} offer it; uninstall one"
            )
        found.setdefault(name, entry_point)
    for name in sorted(found):
        if name in _registered or name in _BUILT_IN:
            kind = "registered" if name in _registered else "built-in"
            LOGGER.warning(
                "sandbox provider %r of %s is shadowed by the %s provider of that name and is not used",
                name,
                _distribution(found[name]),
                kind,
            )
            del found[name]
    return found


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value
