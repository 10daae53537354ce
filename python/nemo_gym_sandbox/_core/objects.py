"""What owns an object of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .lib import Library

__all__ = ["NativeObject", "NativeSandbox"]


class NativeObject:
    """Owns an object of the library, and lets go of it when it is dropped. Never waits."""

    __slots__ = ("__weakref__", "_release", "number")

    def __init__(self, lib: Library, number: int) -> None:
        self.number: int = number
        self._release = lib.release

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number:#x}>"

    def __reduce__(self) -> NoReturn:
        # A copy would let go of the object a second time, and another process has no such object.
        raise TypeError(
            "an open sandbox or provider belongs to its process and cannot be copied or pickled: "
            "make providers where they are used, and hand sandboxes over with serialize() and connect()"
        )

    def __del__(self) -> None:
        self._release(self.number)


class NativeSandbox(NativeObject):
    """What a native provider's handles hold as ``raw``.

    Dropped without a stop, the sandbox lives on by its own rules (TTL, orphan timeout).
    """

    __slots__ = ()
