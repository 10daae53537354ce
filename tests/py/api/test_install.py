"""install(): nemo_gym.sandbox served by this package, or given its providers where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nemo_gym_sandbox

ROOT = Path(nemo_gym_sandbox.__file__).parent.parent


def python(code: str, *paths: Path, cwd: Path | None = None) -> str:
    """Run a program in its own interpreter: what is imported stays imported."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT]))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_are_the_same_objects_whichever_is_imported_first():
    python("""
    import sys
    import nemo_gym_sandbox
    nemo_gym_sandbox.install()
    nemo_gym_sandbox.install()  # does nothing
    import nemo_gym.sandbox
    assert nemo_gym.sandbox is nemo_gym_sandbox
    from nemo_gym.sandbox.providers.docker import DockerProvider  # ours not imported yet
    import nemo_gym_sandbox.providers.docker
    assert DockerProvider is nemo_gym_sandbox.providers.docker.DockerProvider
    import nemo_gym.sandbox.providers.base as theirs, nemo_gym_sandbox.providers.base as ours
    assert theirs is ours
    assert isinstance(nemo_gym.sandbox.SandboxSpec(), ours.SandboxSpec)
    import importlib, inspect, pickle
    for name in ("api", "config", "utils", "attribution", "access", "providers.registry", "providers.local", "telemetry"):
        module = importlib.import_module(f"nemo_gym.sandbox.{name}")
        assert module is sys.modules[f"nemo_gym_sandbox.{name}"], name
        assert module.__spec__.name == module.__name__ == f"nemo_gym_sandbox.{name}"
    assert nemo_gym.sandbox.api.AsyncSandbox is nemo_gym_sandbox.AsyncSandbox
    # Written where the original is, read here.
    data = pickle.dumps(ours.SandboxSpec(image="i")).replace(b"nemo_gym_sandbox.providers", b"nemo_gym.sandbox.providers")
    assert pickle.loads(data) == ours.SandboxSpec(image="i")
    """)


def test_every_public_module_is_served():
    python("""
    import importlib, pkgutil
    import nemo_gym_sandbox
    nemo_gym_sandbox.install()
    seen = []
    for module in pkgutil.walk_packages(nemo_gym_sandbox.__path__, "nemo_gym_sandbox."):
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        theirs = module.name.replace("nemo_gym_sandbox", "nemo_gym.sandbox")
        try:
            expected = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert "not in this version" in str(error) or "This version of nemo_gym_sandbox has no" in str(error)
            continue
        assert importlib.import_module(theirs) is expected
        seen.append(theirs)
    assert "nemo_gym.sandbox.providers.registry" in seen
    """)


def test_nothing_is_served_that_is_not_there():
    python("""
    import importlib.util
    import nemo_gym_sandbox
    nemo_gym_sandbox.install()
    for name in ("nemo_gym.sandbox.nothing", "nemo_gym.other", "nemo_gymnasium"):
        assert importlib.util.find_spec(name) is None, name
    try:
        import nemo_gym.sandbox.nothing
    except ModuleNotFoundError as error:
        assert error.name == "nemo_gym.sandbox.nothing"
    else:
        raise AssertionError
    """)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("from {s} import AsyncSandboxCompose", "no Docker Compose adapter"),
        ("import {s}.adapters.docker_compose", "no Docker Compose adapter"),
        ("from {u}.sandbox_session import SandboxSession", "no sandbox sessions"),
    ],
)
def test_what_this_version_lacks_is_said_where_it_is_looked_for(statement: str, text: str):
    for s, u in (
        ("nemo_gym.sandbox", "nemo_gym.agent_utils"),
        ("nemo_gym_sandbox", "nemo_gym_sandbox.agent_utils"),
    ):
        printed = python(f"""
        import nemo_gym_sandbox
        nemo_gym_sandbox.install()
        try:
            {statement.format(s=s, u=u)}
        except ImportError as error:
            print(error)
        """)
        assert text in printed


def test_uninstall_takes_the_names_back():
    python("""
    import sys
    import nemo_gym_sandbox
    before, finders = set(sys.modules), list(sys.meta_path)
    nemo_gym_sandbox.uninstall()  # nothing to undo
    nemo_gym_sandbox.install()
    import nemo_gym.sandbox.providers.base as base
    nemo_gym_sandbox.uninstall()
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.partition(".")[0] == "nemo_gym"]
    try:
        import nemo_gym.sandbox
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError
    assert base.SandboxSpec is nemo_gym_sandbox.SandboxSpec
    nemo_gym_sandbox.install()
    import nemo_gym.sandbox.providers.base as again
    assert again is base
    """)


def test_a_folder_of_that_name_does_not_get_in_between(tmp_path: Path):
    (tmp_path / "nemo_gym").mkdir()
    (tmp_path / "nemo_gym" / "data.txt").touch()
    printed = python(
        """
        import nemo_gym_sandbox
        nemo_gym_sandbox.install()
        import nemo_gym.sandbox
        print(nemo_gym.sandbox.__name__)
        """,
        tmp_path,
        cwd=tmp_path,
    )
    assert printed == "nemo_gym_sandbox\n"


def test_a_package_without_sandboxes_keeps_all_else(tmp_path: Path):
    utilities = tmp_path / "nemo_gym" / "agent_utils"
    utilities.mkdir(parents=True)
    (tmp_path / "nemo_gym" / "__init__.py").write_text("mark = 'real'")
    (utilities / "__init__.py").write_text("mark = 'real too'")
    printed = python(
        """
        import nemo_gym_sandbox
        nemo_gym_sandbox.install()
        import nemo_gym.sandbox, nemo_gym.agent_utils
        print(nemo_gym.mark, nemo_gym.agent_utils.mark, nemo_gym.sandbox.__name__)
        nemo_gym_sandbox.uninstall()
        print(hasattr(nemo_gym, "sandbox"))
        """,
        tmp_path,
    )
    assert printed == "real real too nemo_gym_sandbox\nFalse\n"


# A package with the agreed names and types of its own, such as ours would meet where the original is installed.
INSTALLED_BASE = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

class SandboxStatus(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"

class SandboxCreateError(RuntimeError): pass
class SandboxCreateVerificationError(SandboxCreateError): pass
class SandboxPtyError(RuntimeError): pass

@dataclass(frozen=True)
class SandboxResources:
    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None

@dataclass(frozen=True)
class SandboxSpec:
    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    metadata: dict = field(default_factory=dict)
    resources: Any = field(default_factory=SandboxResources)
    entrypoint: list | None = None
    provider_options: dict = field(default_factory=dict)
    ports: tuple = ()

@dataclass
class SandboxHandle:
    sandbox_id: str
    provider_name: str
    raw: Any

@dataclass(frozen=True)
class SandboxExecResult:
    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None

@dataclass(frozen=True)
class SandboxEndpoint:
    endpoint: str
    headers: dict = field(default_factory=dict)
"""

INSTALLED = """
from .providers.base import *

_classes = {"docker": "their docker", "local": "their local", "opensandbox": "their opensandbox"}

def register_provider(name, cls, override=False):
    if name in _classes and not override:
        raise ValueError("already registered")
    _classes[name] = cls

def get_provider_class(name):
    return _classes[name]

def list_providers():
    return sorted(_classes)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    package = tmp_path / "nemo_gym" / "sandbox"
    (package / "providers").mkdir(parents=True)
    (tmp_path / "nemo_gym" / "__init__.py").touch()
    (package / "__init__.py").write_text(INSTALLED)
    (package / "providers" / "__init__.py").touch()
    (package / "providers" / "base.py").write_text(INSTALLED_BASE)
    return tmp_path


def test_an_installed_package_gets_our_providers_in_its_types(installed: Path):
    python(
        """
        import asyncio, os
        from pathlib import Path
        import nemo_gym_sandbox
        nemo_gym_sandbox.install()
        nemo_gym_sandbox.install()
        import nemo_gym.sandbox as theirs
        assert theirs.__name__ == "nemo_gym.sandbox"
        Local = theirs.get_provider_class("local")
        assert issubclass(Local, nemo_gym_sandbox.get_provider_class("local"))
        assert isinstance(Local(), nemo_gym_sandbox.SandboxProvider)
        Cluster = theirs.get_provider_class("opensandbox")
        assert issubclass(Cluster, nemo_gym_sandbox.get_provider_class("opensandbox"))

        async def main():
            provider = Local(isolation="none")
            spec = theirs.SandboxSpec(env={"A": "b"}, files={"f": "uploaded by them"}, ports=(8080,),
                                      resources=theirs.SandboxResources())
            handle = await provider.create(spec)
            assert type(handle) is theirs.SandboxHandle, handle
            result = await provider.exec(handle, "echo $A; ls", timeout_s=20)
            assert result == theirs.SandboxExecResult("b\\n", "", 0), result
            late = await provider.exec(handle, "sleep 60", timeout_s=0.2)
            assert (late.return_code, late.error_type) == (125, "timeout")
            assert await provider.status(handle) is theirs.SandboxStatus.RUNNING
            assert type(await provider.endpoint(handle, 8080)) is theirs.SandboxEndpoint
            await provider.pause(handle)
            assert await provider.status(handle) is theirs.SandboxStatus.RUNNING  # it has no word for paused
            await provider.resume(handle)
            Path("up.txt").write_text("x")
            await provider.upload_file(handle, Path("up.txt"), "up.txt")
            assert (await provider.exec(handle, "cat up.txt")).stdout == "x"
            await provider.close(handle)
            assert await provider.status(handle) is theirs.SandboxStatus.STOPPED
            await provider.aclose()

        asyncio.run(main())

        async def fails():
            provider = theirs.get_provider_class("docker")(connection={"host": "unix:///nowhere.sock"})
            try:
                await provider.create(theirs.SandboxSpec(image="i"))
            except theirs.SandboxCreateError as error:
                assert isinstance(error, nemo_gym_sandbox.providers.docker.DockerCreateError)
                assert "nowhere.sock" in str(error)
            else:
                raise AssertionError
            await provider.aclose()

        asyncio.run(fails())
        nemo_gym_sandbox.uninstall()
        for name in ("docker", "local", "opensandbox"):
            assert theirs.get_provider_class(name) == f"their {name}"
        """,
        installed,
        cwd=installed,
    )
