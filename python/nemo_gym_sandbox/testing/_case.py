"""What a case is, and how the files of cases collect theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nemo_gym_sandbox.testing._backend import Backend
    from nemo_gym_sandbox.testing._box import Box

    Body: TypeAlias = Callable[[Box], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One way to fail. Awaiting ``body`` with a sandbox raises when the provider fails so."""

    name: str
    group: str
    body: Callable[[Box], Awaitable[None]]
    own: bool
    """It gets a sandbox of its own, which it starts itself; others share one that runs."""
    unless: tuple[str, ...] = ()
    """Declared differences that leave it without a meaning."""
    only_if: str = ""
    """The declared difference without which it has no meaning."""
    needs_leftovers: bool = False
    """It has a meaning only where ``Backend.leftovers`` can tell."""

    def fits(self, backend: Backend) -> bool:
        """Whether it has a meaning for the backend."""
        if self.needs_leftovers and backend.leftovers is None:
            return False
        if self.only_if and not getattr(backend, self.only_if):
            return False
        return not any(getattr(backend, name) for name in self.unless)


class Group:
    """A file of cases."""

    def __init__(self, name: str, *, own: bool = False) -> None:
        self.name = name
        self.own = own
        self.cases: list[Case] = []

    def case(self, *, unless: str = "", only_if: str = "", leftovers: bool = False) -> Callable[[Body], Body]:
        """Make a function a case. ``unless`` names differences, with blanks between them."""

        def add(body: Body) -> Body:
            name = getattr(body, "__name__", "")
            self.cases.append(Case(name, self.name, body, self.own, tuple(unless.split()), only_if, leftovers))
            return body

        return add
