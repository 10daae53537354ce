"""Run a Python program with this package in the place of nemo_gym.sandbox.

The program needs no change: it runs as plain ``python`` would run it, with its own ``sys.argv``, ``sys.path[0]``,
``__main__``, exit status and tracebacks. Python processes that it starts see the same, by ``PYTHONPATH``.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox._install import SERVED, install, serves_names

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, TracebackType

_USAGE = """usage: nemo-gym-sandbox run [--] PROGRAM [ARGUMENT ...]
       nemo-gym-sandbox run -m MODULE [ARGUMENT ...]

Runs a script, a folder or archive with a __main__.py, or a module, with nemo_gym.sandbox
served by nemo_gym_sandbox. Where nemo_gym is installed it stays, and gets our docker, local
and opensandbox providers.
"""


class _NotFound(Exception):
    """There is no such program; the message, and the status that python exits with."""


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name, in this process."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        arguments = arguments[1:]
    if not arguments or (arguments[0].startswith("-") and not as_module):
        sys.stderr.write(_USAGE)
        return 2
    install()
    if serves_names():
        _serve_children()
    sys.argv = arguments
    try:
        code, program = _module(arguments[0]) if as_module else _script(arguments[0])
    except _NotFound as error:
        message, status = error.args
        sys.stderr.write(f"{sys.executable}: {message}\n")
        return status
    except SyntaxError as error:
        _fail(error, None)
        raise
    sys.modules["__main__"] = program
    try:
        exec(code, program.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _fail(error, error.__traceback__ and error.__traceback__.tb_next)
        raise
    return 0


def _serve_children() -> None:
    """For processes that multiprocessing starts, which get our sys.path, and for all others."""
    sys.path.append(str(SERVED))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(SERVED) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), str(SERVED)])


def _fail(error: BaseException, traceback: TracebackType | None) -> None:
    """Report an error as the program's own, without the frames that are ours; the interpreter then only exits."""
    error.__traceback__ = traceback
    sys.excepthook(type(error), error, traceback)
    sys.excepthook = _say_nothing


def _say_nothing(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Stands in for the hook that has reported the error."""


def _script(path: str) -> tuple[CodeType, ModuleType]:
    importer: Any = pkgutil.get_importer(os.path.abspath(path))
    if importer is not None:  # a folder or an archive
        folder = os.path.abspath(path)
        _set_first_path(folder)
        spec = importer.find_spec("__main__")
        if spec is None:
            raise _NotFound(f"can't find '__main__' module in {folder!r}", 1)
        return _from_spec(spec)
    file = os.path.abspath(path)
    loader = SourceFileLoader("__main__", file)
    try:
        source = loader.get_data(file)
    except OSError as error:
        raise _NotFound(f"can't open file {file!r}: [Errno {error.errno}] {error.strerror}", 2) from None
    _set_first_path(os.path.dirname(os.path.realpath(file)))
    return loader.source_to_code(source, file), _main_module(loader, file)


def _module(name: str) -> tuple[CodeType, ModuleType]:
    _set_first_path(os.getcwd())
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{name}.__main__")
        if spec is None:
            raise _NotFound(
                f"No module named {name}.__main__; {name!r} is a package and cannot be directly executed", 1
            )
    if spec is None:
        raise _NotFound(f"No module named {name}", 1)
    if spec.origin is not None:
        sys.argv[0] = spec.origin
    return _from_spec(spec)


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise


def _from_spec(spec: ModuleSpec) -> tuple[CodeType, ModuleType]:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise _NotFound(f"No code object available for {spec.name}", 1)
    program = _main_module(loader, spec.origin)
    program.__spec__ = spec
    program.__package__ = spec.parent
    return code, program


def _main_module(loader: Any, file: str | None) -> ModuleType:
    program = ModuleType("__main__")
    attributes = {"__loader__": loader, "__file__": file, "__cached__": None, "__builtins__": builtins}
    program.__dict__.update(attributes)
    return program


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder
