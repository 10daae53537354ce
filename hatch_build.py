"""Puts the Go library into the wheel, and the Go dependencies into the source archive.

Environment:
  NGS_PREBUILT_SO  path of a ready libngs.so to pack, instead of building one (release builds)
  NGS_PLAT         the wheel's platform tag, e.g. manylinux_2_17_x86_64; the host's own otherwise
  NGS_SKIP_LIB     for editable installs: leave the library in the tree as it is
"""

import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "nemo_gym_sandbox/_core/libngs.so"


class CustomBuildHook(BuildHookInterface[Any]):
    """Called by hatchling once for each thing that it builds."""

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "sdist":
            self._add_vendor(build_data)
            return
        platform = os.environ.get("NGS_PLAT") or sysconfig.get_platform()
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform.replace("-", "_").replace(".", "_")
        if version == "editable":
            if not os.environ.get("NGS_SKIP_LIB"):
                self._build(Path(self.root, "python", LIBRARY))
            return
        prebuilt = os.environ.get("NGS_PREBUILT_SO")
        if prebuilt:
            library = Path(prebuilt).resolve()
            if not library.is_file():
                self._fail(f"NGS_PREBUILT_SO names {prebuilt}, which is no file.", "Build it first: ./build.sh lib")
        else:
            library = self._scratch_dir() / "libngs.so"
            self._build(library)
        build_data["force_include"][str(library)] = LIBRARY

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    def _build(self, library: Path) -> None:
        """Runs the project's own build, whose messages say what is missing."""
        run = self._run(["bash", str(Path(self.root, "build.sh")), "lib"], NGS_LIB_OUT=str(library))
        if run.returncode != 0:
            self._fail(run.stdout.strip(), "The Go library of nemo-gym-sandbox was not built.")

    def _add_vendor(self, build_data: dict[str, Any]) -> None:
        """Copies of all Go dependencies, so that a wheel can be built from the archive without a network."""
        present = Path(self.root, "vendor")
        if present.is_dir():  # this tree is an unpacked source archive itself
            vendor = present
        else:
            vendor = self._scratch_dir() / "vendor"
            run = self._run(["go", "mod", "vendor", "-o", str(vendor)])
            if run.returncode != 0:
                self._fail(run.stdout.strip(), "The Go dependencies were not copied into the source archive.")
        build_data["force_include"][str(vendor)] = "vendor"

    def _run(self, command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            return subprocess.CompletedProcess(command, 127, f"{command[0]} is not on PATH.", "")

    def _scratch_dir(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="ngs-build-")
        return Path(self._scratch.name)

    def _fail(self, what: str, then: str) -> None:
        self.app.abort(f"{what}\n{then}")
