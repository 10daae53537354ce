"""The cases that a provider has to pass, against ours in all their ways of working and against a stranger's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plain_provider import PlainProvider

from nemo_gym_sandbox import SandboxSpec
from nemo_gym_sandbox.testing import Backend, SandboxConformance
from nemo_gym_sandbox.testing._known import backend

if TYPE_CHECKING:
    from collections.abc import Iterable

IMAGE = "lab/busybox:1"


def own_folder(name: str) -> str:
    """A path that nothing else uses; whoever needs it makes the folder."""
    return os.path.join(tempfile.gettempdir(), f"conformance-{os.getpid()}-{name.replace(' ', '-')}")


class OwnState:
    """Keeps what our providers note on disk in a folder of the class, so that all of it is seen."""

    state: ClassVar[str]
    _state_before: ClassVar[str | None]

    @classmethod
    def setup_class(cls) -> None:
        cls._state_before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = cls.state
        os.makedirs(f"{cls.state}/work")
        super().setup_class()  # type: ignore[misc]

    @classmethod
    def teardown_class(cls) -> None:
        try:
            super().teardown_class()  # type: ignore[misc]
        finally:
            if cls._state_before is None:
                os.environ.pop("XDG_STATE_HOME")
            else:
                os.environ["XDG_STATE_HOME"] = cls._state_before
            shutil.rmtree(cls.state, ignore_errors=True)


def below(folder: str, pattern: str) -> list[str]:
    return [str(path) for path in Path(folder).glob(pattern)]


def processes_with(text: str) -> list[str]:
    found: list[str] = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = line.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if text.encode() in command:
            found.append(f"process {line.parent.name} {command!r}")
    return found


def local(name: str, isolation: str) -> tuple[str, Backend]:
    state = own_folder(name)

    def leftovers() -> Iterable[str]:
        return [*below(state, "work/*"), *below(state, "*/s/*"), *processes_with(state)]

    config = {"local": {"isolation": isolation, "workspace_root": f"{state}/work"}}
    return state, backend(config, name=name, leftovers=leftovers)


class TestLocalIsolated(OwnState, SandboxConformance):
    state, backend = local("local bwrap", "bwrap")


class TestLocalUnisolated(OwnState, SandboxConformance):
    state, backend = local("local none", "none")


def docker(name: str, config: dict[str, Any]) -> tuple[str, Backend]:
    state = own_folder(name)
    tag = f"lab/conformance-{os.getpid()}-{name.replace(' ', '-')}:1"  # tells our containers from all others

    def leftovers() -> Iterable[str]:
        lines = run_docker("ps", "--all", "--no-trunc", "--format", "{{.Image}} {{.Names}}").splitlines()
        containers = [line for line in lines if line.startswith(f"{tag} ")]
        return [*containers, *below(state, "*/s/*")]

    spec = SandboxSpec(image=tag, workdir="/work/space")
    return state, backend({"docker": config}, spec=spec, name=name, leftovers=leftovers)


def run_docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


class OwnImage(OwnState):
    """Gives the class's containers an image name of their own."""

    backend: ClassVar[Backend]

    @classmethod
    def setup_class(cls) -> None:
        run_docker("tag", IMAGE, str(cls.backend.spec.image))
        super().setup_class()

    @classmethod
    def teardown_class(cls) -> None:
        try:
            super().teardown_class()
        finally:
            run_docker("rmi", "--no-prune", str(cls.backend.spec.image))


class TestDockerAgent(OwnImage, SandboxConformance):
    state, backend = docker("docker agent", {"exec": {"mode": "agent"}})


class TestDockerEngine(OwnImage, SandboxConformance):
    state, backend = docker("docker engine", {"exec": {"mode": "engine"}})


class TestPlainPython(SandboxConformance):
    _folder = own_folder("plain")
    backend = Backend(
        "plain",
        lambda: PlainProvider(TestPlainPython._folder),
        leftovers=lambda: below(TestPlainPython._folder, "*"),
        no_users=True,
        no_stdin=True,
        no_streaming=True,
        no_long_commands=True,
        no_tree_kill=True,
        no_kill_on_close=True,
        no_pause=True,
        no_connect=True,
        no_endpoints=True,
        no_ttl=True,
        no_entrypoint=True,
        no_terminals=True,
        max_in_flight=40,
    )

    @classmethod
    def setup_class(cls) -> None:
        os.makedirs(cls._folder)
        super().setup_class()

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        shutil.rmtree(cls._folder)
