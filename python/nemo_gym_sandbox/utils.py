"""Small helpers for harnesses: capping threads, rewriting image names, reading a sandbox's text files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CPU_CAP_ENV_VARS", "cpu_cap_env", "read_text", "rewrite_image"]

CPU_CAP_ENV_VARS: Final = (
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "DJANGO_TEST_PROCESSES",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "RAYON_NUM_THREADS",
    "RUST_TEST_THREADS",
    "UV_THREADPOOL_SIZE",
    "CMAKE_BUILD_PARALLEL_LEVEL",
)
"""The variables by which tools that count the host's cores can be told of fewer."""


class _Downloader(Protocol):
    async def download(self, remote: str, local: Path) -> None: ...


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """The environment that keeps tools within ``cpu`` cores, at least one; empty for None."""
    if cpu is None:
        return {}
    cap = str(max(1, int(cpu)))
    return dict.fromkeys(CPU_CAP_ENV_VARS, cap)


def rewrite_image(image: str | None, rewrites: Iterable[Mapping[str, str]] | None) -> str | None:
    """Replace the first prefix that matches, each entry being ``{"from": prefix, "to": prefix}``."""
    if image is None:
        return None
    for rewrite in rewrites or ():
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image[len(rewrite["from"]) :]
    return image


async def read_text(sandbox: _Downloader, path: str) -> str:
    """Download one file of a sandbox and return its text; bytes that are not UTF-8 become U+FFFD."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="nemo-gym-sandbox-") as folder:
        target = Path(folder) / "file"
        await sandbox.download(path, target)
        return target.read_bytes().decode("utf-8", errors="replace")
