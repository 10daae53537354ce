"""Makes code that imports ``nemo_gym.sandbox`` run on this package without a change.

Where ``nemo_gym`` is not installed its names are served from here: ``nemo_gym.sandbox.x`` is the module
``nemo_gym_sandbox.x`` itself, so a class has one identity under both names. Where it is installed it stays, and gets the
providers of this package that are meant to replace its own.
"""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

__all__ = ["SERVED", "install", "serve_below", "uninstall"]

ROOT: Final = "nemo_gym"
THEIRS: Final = f"{ROOT}.sandbox"

_OURS: Final = {THEIRS: "nemo_gym_sandbox", f"{ROOT}.agent_utils": "nemo_gym_sandbox.agent_utils"}
"""Packages, with all below them, and what is served in their place."""

SERVED: Final = Path(__file__).parent / "_served"
"""A folder for ``PYTHONPATH``: a package ``nemo_gym`` that serves ours, for processes that do not call install()."""

_lock = threading.Lock()
_undo: Callable[[], None] | None = None


def install() -> None:
    """Let ``import nemo_gym.sandbox``, and all below it, give this package.

    Where the package ``nemo_gym`` is installed, its own API stays and our ``docker``, ``local`` and ``opensandbox`` providers
    take the places of its providers of those names, with results and errors of its types. Repeating this does nothing.
    """
    global _undo
    with _lock:
        if _undo is not None:
            return
        if _is_installed():
            from nemo_gym_sandbox._foreign import take_over

            _undo = take_over(THEIRS)
        else:
            root = find_spec(ROOT)
            _undo = _serve(_Finder(_OURS, root=True) if root is None else _Finder({THEIRS: _OURS[THEIRS]}))


def uninstall() -> None:
    """Take back what :func:`install` did; modules and classes that were imported meanwhile stay usable."""
    global _undo
    with _lock:
        if _undo is not None:
            _undo()
            _undo = None


def serve_below() -> None:
    """For the package in :data:`SERVED`, which is ``nemo_gym`` itself: serve what is below it."""
    global _undo
    with _lock:
        if _undo is None:
            _undo = _serve(_Finder(_OURS))


def serves_names() -> bool:
    """Whether this package stands in for one that is not installed."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def _is_installed() -> bool:
    """Whether there is a ``nemo_gym.sandbox`` other than ours. Imports nothing of it."""
    if THEIRS in sys.modules:
        return True
    root = find_spec(ROOT)
    if root is None or root.submodule_search_locations is None:
        return False
    spec = PathFinder.find_spec(THEIRS, list(root.submodule_search_locations))
    return spec is not None and spec.origin is not None


class _Alias(Loader):
    """Gives a module of ours under another name: the same object, which keeps its own name and spec."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(self._ours)


class _Empty(Loader):
    """The package ``nemo_gym``, in which there is nothing but what is served."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Stands in for nemo_gym, which is not installed: nemo_gym_sandbox serves nemo_gym.sandbox."


class _Finder(MetaPathFinder):
    """Finds what is below ``nemo_gym``, and with ``root`` that package itself."""

    def __init__(self, served: Mapping[str, str], *, root: bool = False) -> None:
        self._served = served
        self.root = root

    def ours(self, name: str) -> str | None:
        """The name here of what another package is asked for."""
        for theirs, ours in self._served.items():
            if name == theirs or name.startswith(f"{theirs}."):
                return ours + name[len(theirs) :]
        return None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(ROOT):
            return None
        if fullname == ROOT:
            return ModuleSpec(fullname, _Empty(), is_package=True) if self.root else None
        ours = self.ours(fullname)
        if ours is None or find_spec(ours) is None:
            return None
        return ModuleSpec(fullname, _Alias(ours))


def _serve(finder: _Finder) -> Callable[[], None]:
    sys.meta_path.insert(0, finder)  # a folder named nemo_gym in the working directory must not get in between

    def undo() -> None:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            ours = finder.ours(name)
            if ours is not None and module is sys.modules.get(ours):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                above = sys.modules.get(parent)
                if parent == ROOT and getattr(above, child, None) is module:
                    delattr(above, child)
        if finder.root:
            sys.modules.pop(ROOT, None)

    return undo
