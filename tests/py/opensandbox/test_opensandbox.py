"""The OpenSandbox provider against the stand-in server, which is a program of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import SandboxPtySpec, SandboxSpec, SandboxStatus
from nemo_gym_sandbox.providers.opensandbox import (
    OpenSandboxConnectionConfig,
    OpenSandboxCreateError,
    OpenSandboxCreateVerificationError,
    OpenSandboxProvider,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), 60)

    asyncio.run(bounded())


def test_life_of_a_sandbox(server: OpenSandboxConnectionConfig, tmp_path: Path) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(connection=server)
        handle = await provider.create(SandboxSpec(image="i", files={"a.txt": "hi"}, metadata={"suite": "a b"}))
        result = await provider.exec(handle, "cat a.txt; exit 3")
        assert (result.stdout, result.return_code, result.error_type) == ("hi", 3, None)
        result = await provider.exec(handle, "echo early; sleep 30", timeout_s=0.2)
        assert (result.stdout, result.return_code, result.error_type) == ("early", 125, "timeout")
        assert result.stderr == "opensandbox command timed out after 0.2s"
        local = tmp_path / "local"
        local.write_bytes(b"\x00\xff\r\n")
        await provider.upload_file(handle, local, "deep/er")
        await provider.download_file(handle, "deep/er", tmp_path / "made" / "back")
        assert (tmp_path / "made" / "back").read_bytes() == b"\x00\xff\r\n"
        session = await provider.create_pty(handle, SandboxPtySpec(command="echo out", pty=False))
        assert await session.read() == b"out\n"
        assert await session.wait_exit() == 0
        await session.close()
        await provider.pause(handle)
        assert await provider.status(handle) is SandboxStatus.PAUSED
        await provider.resume(handle)
        descriptor = await provider.serialize_handle(handle)
        assert descriptor == {"sandbox_id": handle.sandbox_id}
        other = OpenSandboxProvider(connection=server)
        taken = await other.connect(descriptor)
        assert (await other.exec(taken, "cat a.txt")).stdout == "hi"
        await other.disconnect_handle(taken)
        endpoint = await provider.endpoint(handle, 8080)
        assert endpoint.endpoint.endswith("/proxy/8080")
        await provider.close(handle)
        assert await provider.status(handle) is SandboxStatus.STOPPED
        await provider.aclose()
        await other.aclose()

    run(body)


def test_the_facade_finds_it_by_name(server: OpenSandboxConnectionConfig) -> None:
    async def body() -> None:
        config = {"opensandbox": {"connection": {"domain": server.domain, "api_key": server.api_key}}}
        async with AsyncSandbox(config) as sandbox:
            await sandbox.start(SandboxSpec(image="i"))
            assert (await sandbox.exec("echo $((6 * 7))")).stdout == "42"

    run(body)


def test_failures_have_their_classes(server: OpenSandboxConnectionConfig) -> None:
    async def body() -> None:
        strict = OpenSandboxProvider(
            connection=server, create={"retries": 0}, probe={"command": "false", "deadline_s": 0.1}
        )
        with pytest.raises(OpenSandboxCreateVerificationError, match="before the startup deadline"):
            await strict.create(SandboxSpec(image="i"))
        wrong = OpenSandboxProvider(connection={"domain": server.domain, "api_key": "wrong"})
        with pytest.raises(OpenSandboxCreateError, match="INVALID_API_KEY"):
            await wrong.create(SandboxSpec(image="i"))
        with pytest.raises(TypeError, match="volumes must be a list"):
            await wrong.create(SandboxSpec(image="i", provider_options={"volumes": 3}))
        with pytest.raises(ValueError, match=r"Unknown OpenSandbox provider option\(s\): volume"):
            await wrong.create(SandboxSpec(image="i", provider_options={"volume": []}))
        with pytest.raises(ValueError, match="Exactly one of image or snapshot_id"):
            await wrong.create(SandboxSpec())
        await strict.aclose()
        await wrong.aclose()

    run(body)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"create": {"renew_interval_s": float("inf")}}, "create.renew_interval_s"),
        ({"create": {"image_pull_policy": "Sometimes"}}, "create.image_pull_policy"),
        ({"create": {"timeout_s": 0}}, "create.timeout_s"),
        ({"probe": {"stable_count": 0}}, "probe.stable_count"),
        ({"operations": {"retries": -1}}, "operations.retries"),
        ({"attribution": {"key_prefix": "Not_A_Valid_Prefix/"}}, "attribution.key_prefix"),
        ({"attribution": {"key_prefix": "bad..example.com/"}}, "attribution.key_prefix"),
        ({"create": {"timeout_s": float("inf")}}, "create.timeout_s must be a finite number"),
        ({"operations": {"retry_delay_s": float("inf")}}, "operations.retry_delay_s must be a finite number"),
        ({"attribution": {"run": 17}}, "attribution.run must be a string"),
        ({"shared_storage": {"host_path": 5}}, "shared_storage.host_path must be a string"),
        ({"shared_storage": {"metadata": ["a"]}}, "shared_storage.metadata must be a mapping of strings"),
        ({"runtime_requirements": {"capability_probes": {"A": 1}}}, "runtime_requirements.capability_probes must be"),
        (
            {"runtime_requirements": {"capability_metadata": {"A": "b"}}},
            r"runtime_requirements.capability_metadata.A must",
        ),
        ({"runtime_requirements": {"capability_metadata": None}}, "runtime_requirements.capability_metadata must be"),
        ({"runtime_requirements": {"shm_size_metadata_key": 1}}, "shm_size_metadata_key must be a string"),
        ({"connection": {"domain": 123}}, 'connection.domain" must be a string, not a number'),
        (
            {"connection": {"use_server_proxy": "yes"}},
            'connection.use_server_proxy" must be true or false, not a string',
        ),
        ({"connection": {"api_key": "a-secret\n"}}, "^(?!.*a-secret).*connection.api_key"),
        ({"connection": {"domain": "ftp://host"}}, "http or https"),
        ({"connection": {"domain": "host?x=1"}}, "query"),
    ],
)
def test_values_that_make_no_sense_are_named(blocks: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpenSandboxProvider(**blocks)


def test_shared_storage_options() -> None:
    provider = OpenSandboxProvider(shared_storage={"host_path": "/shared", "metadata": {"zone": "a"}})
    assert provider.shared_volume_metadata() == {"zone": "a"}
    assert provider.shared_volume_options("proj/x", "/mnt/p", read_only=True) == {
        "volumes": [
            {
                "name": "shared-b8a11048612da48d",
                "host": {"path": "/shared"},
                "subPath": "proj/x",
                "mountPath": "/mnt/p",
                "readOnly": True,
            }
        ]
    }
    root = provider.shared_volume_options(None, "/mnt/root")["volumes"][0]
    assert (root["name"], "subPath" in root) == ("shared-f40e7e54cd28082f", False)
    for source in ("/abs", "a/../b", "", "a\\b"):
        with pytest.raises(ValueError, match="safe project-relative"):
            provider.shared_volume_options(source, "/mnt")
    with pytest.raises(NotImplementedError, match=r"shared_storage\.host_path"):
        OpenSandboxProvider().shared_volume_metadata()


def test_runtime_requirements() -> None:
    provider = OpenSandboxProvider(
        runtime_requirements={
            "capability_probes": {"SYS_ADMIN": "true"},
            "capability_metadata": {"SYS_ADMIN": {"cap": "yes"}},
            "shm_size_metadata_key": "shm",
        }
    )
    assert provider.validate_runtime_requirements(["SYS_ADMIN"], 1024) == {"cap": "yes", "shm": "1024"}
    with pytest.raises(NotImplementedError, match="NET_ADMIN"):
        provider.validate_runtime_requirements(["NET_ADMIN"], None)
    with pytest.raises(ValueError, match="positive number of bytes"):
        provider.validate_runtime_requirements([], 0)


def test_the_arguments_of_a_program_are_its_own(server: OpenSandboxConnectionConfig) -> None:
    """Nothing that makes a request reads the command line of the process, or a configuration that it does not name."""
    program = """
import asyncio, sys
from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

async def main():
    provider = OpenSandboxProvider(connection={"domain": sys.argv[1], "api_key": sys.argv[2], "use_server_proxy": True})
    handle = await provider.create(SandboxSpec(image="i"))
    print((await provider.exec(handle, "echo ran")).stdout)
    await provider.close(handle)
    await provider.aclose()

asyncio.run(main())
"""
    given = [str(server.domain), str(server.api_key), "positional", "key=value", "--help", "+config.x=1"]
    argv = [sys.executable, "-c", program, *given]
    ran = subprocess.run(argv, env=dict(os.environ), capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "ran", "")
