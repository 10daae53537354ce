"""Finds the shared library, checks that it fits, loads it once, and guards against its use after a fork.

A program that wants ``faulthandler`` enables it before the library is loaded, which the first provider does: enabled
later, it takes faults for itself that the library would have turned into errors.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EAGAIN", "EBADHANDLE", "ECLOSED", "EEOF", "EFAILED", "Library", "library", "loaded"]

ABI_MAJOR = 1
ABI_MINOR = 2

# Codes of calls; see capi/ngs.h.
EFORKED = -101
EPANIC = -102
EBADHANDLE = -103
ECLOSED = -104
EAGAIN = -105
EABI = -106
EEOF = -108
EFAILED = -112

FORKED = (
    "a sandbox of the parent process can't be used in a forked child: the threads that serve it exist only in the "
    "parent; start workers with multiprocessing's 'spawn' or 'forkserver' method and connect to the sandbox there"
)

SHUTDOWN_MS = 200
"""How long the interpreter's exit waits for commands in flight to be killed."""

_MARK = "_nemo_gym_sandbox_library"
"""Attribute of ``sys`` that tells which library this process has: a second one would be a second Go runtime."""


class Library:
    """The functions of the library.

    Short ones are called with the GIL held: they never wait, and giving the GIL away could cost a switch interval to get
    back. Those that may wait release it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forked: bool = False
        self.ended: bool = False  # the interpreter is exiting
        self.after_fork: list[Callable[[], None]] = []
        short, long = _open(path)
        self.abi: tuple[int, int] = _checked_abi(short, path)

        u64, i64, i32, size = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64
        addr, text = ctypes.c_void_p, ctypes.c_char_p

        def declare(dll: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            function = dll[name]
            function.restype = result
            function.argtypes = list(arguments)
            return function

        self.bridge_new: Callable[..., Any] = declare(short, "ngs_bridge_new", i64)
        self.bridge_fd: Callable[..., Any] = declare(short, "ngs_bridge_fd", i32, i64)
        self.bridge_close: Callable[..., Any] = declare(short, "ngs_bridge_close", i32, i64)
        self.submit: Callable[..., Any] = declare(short, "ngs_submit", i32, i64, u64, ctypes.c_uint32, text, size)
        self.cancel: Callable[..., Any] = declare(short, "ngs_cancel", i32, i64, u64)
        self.drain: Callable[..., Any] = declare(short, "ngs_drain", i64, i64, addr, size)
        self.stream_read: Callable[..., Any] = declare(short, "ngs_stream_read", i64, i64, addr, size)
        self.stream_write: Callable[..., Any] = declare(short, "ngs_stream_write", i64, i64, text, size)
        self.stream_close_write: Callable[..., Any] = declare(short, "ngs_stream_close_write", i32, i64)
        self._stream_error = declare(short, "ngs_stream_error", i64, i64, addr, size)
        self.stream_close: Callable[..., Any] = declare(short, "ngs_stream_close", i32, i64)
        self.release: Callable[..., Any] = declare(short, "ngs_release", i32, i64)
        self._strerror = declare(short, "ngs_strerror", text, i64)
        self._layout = declare(short, "ngs_layout", i64, addr, size)
        self._sync_environ = declare(short, "ngs_sync_environ", i32)
        self._stats = declare(short, "ngs_stats", i64, addr, size)
        self._build_info = declare(short, "ngs_build_info", i64, addr, size)
        self._provider_new = declare(long, "ngs_provider_new", i64, text, size, text, size, addr, size)
        self._start = declare(long, "ngs_runtime_start", i32, text, size)
        self._shutdown = declare(long, "ngs_shutdown", i32, i64)

        config = json.dumps({"abi": ABI_MAJOR << 16 | ABI_MINOR}).encode()
        code = self._start(config, len(config))
        if code < 0:
            raise ImportError(f"the sandbox library {path} did not start: {self.strerror(code)}")

    def check(self) -> None:
        """Raise RuntimeError in a forked child."""
        if self.forked:
            raise RuntimeError(FORKED)

    def strerror(self, code: int) -> str:
        """The text of a code."""
        return self._strerror(code).decode()

    def failure(self, code: int, what: str) -> RuntimeError:
        """The exception for a call that was refused."""
        if code == EFORKED:
            return RuntimeError(FORKED)
        return RuntimeError(f"{what}: {self.strerror(code)}")

    def provider_new(self, name: str, config: bytes) -> tuple[int, dict[str, Any] | None]:
        """Make a provider: its handle, or a code and the description of the failure."""
        self._sync_environ()  # with the GIL held, so that no other thread changes os.environ meanwhile
        room = ctypes.create_string_buffer(128 << 10)
        raw = name.encode()
        handle = self._provider_new(raw, len(raw), config, len(config), room, len(room))
        if handle > 0:
            return handle, None
        return handle, json.loads(room.value) if room.value else None

    def stream_error(self, stream: int) -> dict[str, Any]:
        """Why the last read or write of a stream failed."""
        room = ctypes.create_string_buffer(128 << 10)
        length = self._stream_error(stream, room, len(room))
        return json.loads(room.raw[:length]) if length > 0 else {}

    def layout(self) -> list[int]:
        """Size of an event, and the offsets of its fields, as the C compiler sees them."""
        numbers = (ctypes.c_uint32 * 16)()
        return list(numbers[: self._layout(numbers, len(numbers))])

    def stats(self) -> dict[str, Any]:
        """What is open in the library, and what faults it had."""
        return self._json(self._stats)

    def build_info(self) -> dict[str, Any]:
        """Versions of the library."""
        return self._json(self._build_info)

    def _json(self, function: Callable[..., int]) -> dict[str, Any]:
        self.check()
        length, room = 0, ctypes.create_string_buffer(16 << 10)
        while (length := function(room, len(room))) > len(room):  # it was cut
            room = ctypes.create_string_buffer(length + 1024)
        if length < 0:
            raise self.failure(length, "the library did not answer")
        return json.loads(room.raw[:length])

    def shutdown(self) -> None:
        """End everything, within a bound. Nothing can be started afterwards."""
        self.ended = True
        if not self.forked:
            self._shutdown(SHUTDOWN_MS)

    def in_child(self) -> None:
        """Called in a forked child: the library is the parent's."""
        self.forked = True
        for close in self.after_fork:
            close()


def _open(path: Path) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    if not path.is_file():
        raise ImportError(
            f"the sandbox library is missing: {path}. In a source tree build it with './build.sh lib'; "
            "an installed package brings it, so install the wheel for this platform"
        )
    other = getattr(sys, _MARK, None)
    if other is not None and other != str(path):
        raise ImportError(
            f"this process already has the sandbox library {other}; a second one, {path}, can't be loaded"
        )
    try:
        return ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the sandbox library can't be loaded: {error}. Rebuild it with './build.sh lib'") from error


def _checked_abi(dll: ctypes.CDLL, path: Path) -> tuple[int, int]:
    try:
        version = dll["ngs_abi_version"]
    except AttributeError as error:
        raise ImportError(f"{path} is not the sandbox library: {error}") from error
    version.restype = ctypes.c_uint32
    version.argtypes = []
    found = version()
    major, minor = found >> 16, found & 0xFFFF
    if major != ABI_MAJOR or minor < ABI_MINOR:
        raise ImportError(
            f"the sandbox library {path} speaks version {major}.{minor} of its interface, this package needs "
            f"{ABI_MAJOR}.{ABI_MINOR}; rebuild it with './build.sh lib', or reinstall the package"
        )
    return major, minor


def _check_platform() -> None:
    if sys.platform != "linux":
        raise ImportError(f"the sandbox library is built for Linux, not for {sys.platform}")
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        libc = None
    if not (libc or "").startswith("glibc"):
        raise ImportError(
            "the sandbox library needs glibc: Go libraries can't be loaded into a musl process (as on Alpine); "
            "use a glibc based image, for example a Debian one"
        )


_library: Library | None = None
_lock = threading.Lock()


def loaded() -> Library | None:
    """The library, if it has been loaded."""
    return _library


def library() -> Library:
    """The library, loaded at the first call.

    Raises ImportError when it is missing or does not fit, RuntimeError in a child that was forked after it was loaded.
    """
    found = _library
    if found is None:
        found = _load()
    found.check()
    return found


def _load() -> Library:
    global _library
    with _lock:
        if _library is None:
            _check_platform()
            path = Path(__file__).resolve().parent / "libngs.so"
            library = Library(path)
            setattr(sys, _MARK, str(path))
            os.register_at_fork(after_in_child=library.in_child)
            _library = library
        return _library


def _at_exit() -> None:
    if _library is not None:
        _library.shutdown()


# Finalizers run latest first, so those of sandboxes, which are made later, still have a library to stop them with.
weakref.finalize(Library, _at_exit)
