"""The cases that a provider has to pass, over the stand-in server: streamed on asyncio's own loop, polled on the other."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import uvloop

from nemo_gym_sandbox import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider
from nemo_gym_sandbox.testing import Backend, SandboxConformance
from nemo_gym_sandbox.testing._known import backend

ROOT = Path(__file__).resolve().parents[3]


class OverStandin(SandboxConformance):
    """The cases with a server of the class's own, whose sandboxes are folders and processes of this machine."""

    operations: ClassVar[dict[str, Any]]
    _url: ClassVar[str]
    _key: ClassVar[str]
    _server: ClassVar[subprocess.Popen[str]]
    _folder: ClassVar[str]

    @classmethod
    def setup_class(cls) -> None:
        cls._folder = tempfile.mkdtemp()
        program = Path(cls._folder) / "serve"
        subprocess.run(["go", "build", "-o", program, "./tests/standins/opensandbox/serve"], cwd=ROOT, check=True)
        cls._server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert cls._server.stdout
        cls._url, cls._key = cls._server.stdout.readline().split()
        super().setup_class()

    @classmethod
    def teardown_class(cls) -> None:
        try:
            super().teardown_class()
        finally:
            assert cls._server.stdin and cls._server.stdout
            cls._server.stdin.close()
            cls._server.wait(30)
            cls._server.stdout.close()
            shutil.rmtree(cls._folder)

    @classmethod
    def provider(cls) -> OpenSandboxProvider:
        return OpenSandboxProvider(
            connection={"domain": cls._url, "api_key": cls._key, "use_server_proxy": True},
            create={"connect_poll_s": 0.02},
            operations={"retry_delay_s": 0.05, **cls.operations},
        )


def over(cls: Any, operations: dict[str, Any]) -> Backend:
    known = backend(
        {"opensandbox": {"operations": operations}},
        spec=SandboxSpec(image="stand-in:1"),
        no_clean_environment=True,
        no_entrypoint=True,
        no_back_pressure=True,
        max_in_flight=40,
    )
    return Backend(**{**known.__dict__, "provider": lambda: cls().provider()})


STREAMED: dict[str, Any] = {}
POLLED = {"background_exec": True, "background_poll_initial_s": 0.01, "background_poll_interval_s": 0.05}


class TestStreamed(OverStandin):
    operations = STREAMED
    backend = over(lambda: TestStreamed, STREAMED)


class TestPolled(OverStandin):
    operations = POLLED
    backend = over(lambda: TestPolled, POLLED)

    @classmethod
    def new_runner(cls) -> asyncio.Runner:
        return asyncio.Runner(loop_factory=uvloop.new_event_loop)


del OverStandin  # it is no test by itself
