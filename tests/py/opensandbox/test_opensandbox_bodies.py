"""Every recorded request to make a sandbox is made again, from the same spec and configuration."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxCreateError, OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "providers/opensandbox/testdata/wire/create_bodies.jsonl").read_text().splitlines()
CASES = {case["case"]: case for case in map(json.loads, LINES) if "spec" in case}
VARIABLES = ("NEMO_GYM_TEAM", "NEMO_GYM_USER", "NEMO_GYM_WORKLOAD", "NEMO_GYM_CONFIG_PATH")
SLURM = ("SLURM_JOB_ACCOUNT", "SLURM_JOB_USER", "SLURM_JOB_NAME")


class Recorder(HTTPServer):
    """Refuses to make sandboxes, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                recorder.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = b'{"code": "SANDBOX::INVALID_PARAMETER", "message": "recorded"}'
                self.send_response(400)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any, **__: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_request_is_made(name: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    for variable in (*VARIABLES, *SLURM):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEMO_GYM_RUN_ID", "run-fixed")
    for variable, value in case.get("environ", {}).items():
        monkeypatch.setenv(variable, value)

    async def create() -> None:
        provider = OpenSandboxProvider(
            connection={"domain": f"127.0.0.1:{recorder.server_port}", "api_key": "k"},
            create=case.get("create"),
            attribution=case.get("attribution", {"enabled": False}),
        )
        try:
            await provider.create(SandboxSpec(**case["spec"]))
        finally:
            await provider.aclose()

    if not case.get("requests"):
        with pytest.raises((ValueError, TypeError)):
            asyncio.run(create())
        assert recorder.bodies == []
        return
    with pytest.raises(OpenSandboxCreateError, match="recorded"):
        asyncio.run(create())
    (sent,) = recorder.bodies
    wanted = case["requests"][0]["body"]
    if name == "ttl_zero":
        wanted["timeout"] = 600  # a time to live of zero is none here: servers refuse it
    user = f"{case.get('attribution', {}).get('key_prefix', 'nemo-gym.nvidia.com/')}user"
    if user not in wanted.get("metadata", {}):
        sent.get("metadata", {}).pop(user, None)  # of whoever runs this
    assert sent == wanted


def test_other_values_become_text_too(recorder: Recorder) -> None:
    async def create() -> None:
        provider = OpenSandboxProvider(
            connection={"domain": f"127.0.0.1:{recorder.server_port}", "api_key": "k"},
            create={"image_pull_policy": None},
            attribution={"enabled": False},
        )
        extensions: dict[str, Any] = {"none": None, "ratio": 1.0, "list": [1, "a"]}
        try:
            await provider.create(SandboxSpec(image="i", provider_options={"extensions": extensions}))
        finally:
            await provider.aclose()

    with pytest.raises(OpenSandboxCreateError, match="recorded"):
        asyncio.run(create())
    assert recorder.bodies[0]["extensions"] == {"none": "None", "ratio": "1.0", "list": "[1, 'a']"}
