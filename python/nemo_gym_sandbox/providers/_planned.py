"""The providers whose names are reserved and which this version does not have."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ApptainerProvider",
    "DaytonaProvider",
    "E2BProvider",
    "EcsFargateProvider",
    "EnrootProvider",
    "OpenShellProvider",
]


class _PlannedProvider:
    name: ClassVar[str]

    def __init__(self, *_args: Any, **_config: Any) -> None:
        raise NotImplementedError(
            f"This version of nemo_gym_sandbox has no {self.name!r} provider; it has 'docker', 'local' and 'opensandbox', and takes "
            "others with register_provider() or from packages that offer one"
        )


class ApptainerProvider(_PlannedProvider):
    """Apptainer containers; not in this version."""

    name = "apptainer"


class DaytonaProvider(_PlannedProvider):
    """Daytona sandboxes; not in this version."""

    name = "daytona"


class E2BProvider(_PlannedProvider):
    """E2B sandboxes; not in this version."""

    name = "e2b"


class EcsFargateProvider(_PlannedProvider):
    """Tasks on Amazon ECS Fargate; not in this version."""

    name = "ecs_fargate"


class EnrootProvider(_PlannedProvider):
    """Enroot containers; not in this version."""

    name = "enroot"


class OpenShellProvider(_PlannedProvider):
    """OpenShell sandboxes; not in this version."""

    name = "openshell"
