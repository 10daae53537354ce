"""The official SDK against the stand-in server, so that the stand-in is not made to the measure of our own client."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from public_server import ROOT, Sdk, SdkError

from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "stand-in:1"


class Standin(NamedTuple):
    url: str
    api_key: str
    sdk: Sdk


@pytest.fixture(scope="module", params=["direct", "proxied"])
def standin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    go = shutil.which("go")
    assert go, "the stand-in server is built with Go"
    program = tmp_path_factory.mktemp("standin") / "serve"
    subprocess.run([go, "build", "-o", program, "./tests/standins/opensandbox/serve"], cwd=ROOT, check=True)
    harness = [sys.executable, ROOT / "tests" / "testenv" / "opensandbox" / "serve.py", "--python"]
    python = subprocess.run(harness, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        url, key = running.stdout.readline().split()
        sdk = Sdk(python, url, key, request.param == "proxied")
        yield Standin(url, key, sdk)
        sdk.close()
        running.stdin.close()


def test_the_life_of_a_sandbox(standin: Standin) -> None:
    sdk = standin.sdk
    box = sdk("create", image=IMAGE, env={"FROM": "the SDK"}, metadata={"by": "sdk"})
    info = sdk("info", box=box)
    assert (info["state"], info["image"], info["metadata"]) == ("Running", IMAGE, {"by": "sdk"})
    assert info["expires_at"] == pytest.approx(time.time() + 600, abs=60)
    assert sdk("list", metadata={"by": "sdk"}) == [box]
    assert sdk("patch_metadata", box=box, patch={"by": None, "more": "1"}) == {"more": "1"}
    assert sdk("renew", box=box, timeout_s=1800) == pytest.approx(time.time() + 1800, abs=60)
    sdk("pause", box=box)
    assert sdk("info", box=box)["state"] == "Paused"
    sdk("resume", box=box)
    assert sdk("run", box=box, command='echo "$FROM"')["stdout"] == ["the SDK"]
    sdk("kill", box=box)
    with pytest.raises(SdkError, match="NOT_FOUND"):
        sdk("info", box=box)


def test_commands(standin: Standin) -> None:
    sdk = standin.sdk
    box = sdk("create", image=IMAGE)
    done = sdk("run", box=box, command="echo out; echo; echo err >&2; exit 3")
    assert (done["stdout"], done["stderr"], done["exit_code"]) == (["out", "\n"], ["err"], 3)
    assert done["error"] == ["CommandExecError", "3"]
    done = sdk("run", box=box, command="echo early; sleep 60", timeout_s=1)
    assert (done["stdout"], done["exit_code"]) == (["early"], -1)
    command = sdk("background", box=box, command="echo out; echo err >&2; exit 4")
    until = time.monotonic() + 20
    while (status := sdk("command_status", box=box, command_id=command))["running"]:
        assert time.monotonic() < until
    assert status["exit_code"] == 4
    assert sdk("command_logs", box=box, command_id=command) == "out\nerr\n"
    command = sdk("background", box=box, command="sleep 1000")
    sdk("interrupt", box=box, command_id=command)
    while (status := sdk("command_status", box=box, command_id=command))["running"]:
        assert time.monotonic() < until
    assert sdk("in_session", box=box, commands=["cd /tmp; export A=kept", "pwd; echo $A"])[1] == ["/tmp", "kept"]
    sdk("kill", box=box)


def test_files_and_our_provider_beside_it(standin: Standin, tmp_path: Path) -> None:
    sdk = standin.sdk
    box = sdk("create", image=IMAGE)
    content = bytes(range(256)) * 1000
    sdk.write(box, str(tmp_path / "deep" / "theirs"), content, mode=600)
    assert (tmp_path / "deep" / "theirs").stat().st_mode & 0o777 == 0o600
    assert sdk.read(box, str(tmp_path / "deep" / "theirs")) == content
    assert sdk("file_info", box=box, path=str(tmp_path / "deep" / "theirs"))["size"] == len(content)
    with pytest.raises(SdkError):
        sdk.read(box, str(tmp_path / "nope"))

    async def ours() -> None:
        provider = OpenSandboxProvider(connection={"domain": standin.url, "api_key": standin.api_key})
        handle = await provider.connect({"sandbox_id": box})
        assert (await provider.exec(handle, "echo ours")).stdout == "ours"
        await provider.download_file(handle, str(tmp_path / "deep" / "theirs"), tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        await provider.close(handle)
        await provider.aclose()

    asyncio.run(ours())
    with pytest.raises(SdkError, match="NOT_FOUND"):
        sdk("info", box=box)
