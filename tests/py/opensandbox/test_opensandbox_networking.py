"""Connections between sandboxes, and the documented configuration block."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from nemo_gym_sandbox import telemetry
from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.config import resolve_provider_config
from nemo_gym_sandbox.providers.base import (
    SandboxSpec,
    SupportsSandboxNetwork,
    SupportsSandboxPortForwarding,
    SupportsSandboxRuntimeRequirements,
    SupportsSandboxSharedStorage,
)
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from conftest import Server

DOCUMENTED = """
sandbox:
  opensandbox:
    connection:
      domain: ${oc.env:OPENSANDBOX_DOMAIN,opensandbox-server.opensandbox-system.svc.cluster.local}
      api_key: ${oc.env:OPENSANDBOX_API_KEY}
      protocol: http
      request_timeout_s: 300
      use_server_proxy: true
      transport_backend: aiohttp
      tls_verify: false
    create:
      request_timeout_s: 1200
      timeout_s: 1500
      retries: 10
      retry_delay_s: 5
      retry_max_delay_s: 90
      skip_health_check: false
      connect_attempt_timeout_s: 1500
    probe:
      timeout_s: 60
      deadline_s: 180
      stable_count: 2
      stable_delay_s: 0.01
    operations:
      retries: 5
      retry_delay_s: 1
      retry_max_delay_s: 45
      command_retries: 0
      close_timeout_s: 30
      pause_resume_timeout_s: 1500
      background_exec: true
      background_poll_initial_s: 0.5
      background_poll_interval_s: 30
      status_poll_timeout_s: 10
"""


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), 60)

    asyncio.run(bounded())


def test_the_documented_block_works_unchanged(standin: Server) -> None:
    text = DOCUMENTED.replace(
        "${oc.env:OPENSANDBOX_DOMAIN,opensandbox-server.opensandbox-system.svc.cluster.local}", standin.url
    ).replace("${oc.env:OPENSANDBOX_API_KEY}", standin.key)
    block = yaml.safe_load(text)["sandbox"]

    async def body() -> None:
        async with AsyncSandbox(resolve_provider_config(block)) as sandbox:
            await sandbox.start(SandboxSpec(image="i", ttl_s=600))
            result = await sandbox.exec("echo one; echo two >&2; exit 3")
            assert (result.stdout, result.stderr, result.return_code) == ("one\ntwo\n", "exit status 3", 3)

    run(body)


def test_what_the_class_can_do() -> None:
    for capability in (
        SupportsSandboxNetwork,
        SupportsSandboxPortForwarding,
        SupportsSandboxRuntimeRequirements,
        SupportsSandboxSharedStorage,
    ):
        assert isinstance(OpenSandboxProvider(), capability)


def test_what_is_switched_off_says_how_to_switch_it_on() -> None:
    plain = OpenSandboxProvider()
    with pytest.raises(NotImplementedError, match=r"networking\.enabled=true"):
        plain.validate_networking()
    with pytest.raises(NotImplementedError, match=r"networking\.loopback_forwarding"):
        plain.validate_port_forwarding()
    with pytest.raises(NotImplementedError, match=r"operations\.background_exec"):
        OpenSandboxProvider(networking={"loopback_forwarding": True}).validate_port_forwarding()


def test_addresses_are_direct_ones(standin: Server) -> None:
    answers: dict[str, Any] = {
        "10.1.2.3:44772": "10.1.2.3",
        "http://[fd00::1]:44772": "fd00::1",
        "10.1.2.3:41000": ValueError("direct, unmapped IP"),
        "10.1.2.3:44772/proxy/44772": ValueError("direct, unmapped IP"),
        "host.example:44772": ValueError("direct, unmapped IP"),
        "u:p@10.1.2.3:44772": ValueError("direct, unmapped IP"),
        "127.0.0.1:44772": ValueError("peer-reachable"),
        "0.0.0.0:44772": ValueError("peer-reachable"),
    }

    async def body() -> None:
        provider = OpenSandboxProvider(connection=standin.connection, networking={"enabled": True})
        handle = await provider.create(SandboxSpec(image="i"))
        path = f"/v1/sandboxes/{handle.sandbox_id}/endpoints/44772"
        for endpoint, expected in answers.items():
            standin.fail(Path=path, Status=200, Body=json.dumps({"endpoint": endpoint}))
            if isinstance(expected, str):
                assert await provider.network_address(handle) == expected
            else:
                with pytest.raises(ValueError, match=str(expected)):
                    await provider.network_address(handle)
        standin.fail(Path=path, Status=200, Body='{"endpoint": "10.1.2.3:44772", "headers": {"Route": "x"}}')
        with pytest.raises(ValueError, match="direct, unmapped IP"):
            await provider.network_address(handle)
        with pytest.raises(ValueError, match="direct, unmapped IP"):
            await provider.network_address(handle)  # what the stand-in says by itself
        await provider.close(handle)
        await provider.aclose()

    run(body)


def test_host_names(standin: Server, tmp_path: Path) -> None:
    class Here(OpenSandboxProvider):
        _hosts_file = str(tmp_path / "hosts")

    (tmp_path / "hosts").write_text("127.0.0.1 localhost")

    async def body() -> None:
        provider = Here(connection=standin.connection, networking={"enabled": True})
        handle = await provider.create(SandboxSpec(image="i"))
        for name in ("", "a b", "a..b", "-" * 64, ".".join(["a" * 60] * 5), "a;b", "a/b"):
            with pytest.raises(ValueError, match="Invalid sandbox hostname"):
                await provider.set_hosts(handle, {"good": "10.0.0.1", name: "10.0.0.2"})
        with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
            await provider.set_hosts(handle, {"good": "10.0.0.256"})
        await provider.set_hosts(handle, {})
        assert (tmp_path / "hosts").read_text() == "127.0.0.1 localhost"
        await provider.set_hosts(handle, {"db_1.local": "10.0.0.1", "web": "fd00::2"})
        assert (tmp_path / "hosts").read_text() == "127.0.0.1 localhost\n10.0.0.1 db_1.local\nfd00::2 web\n"
        Here._hosts_file = str(tmp_path / "no" / "hosts")
        with pytest.raises(RuntimeError, match="could not be set"):
            await provider.set_hosts(handle, {"web": "10.0.0.2"})
        await provider.close(handle)
        await provider.aclose()

    run(body)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"peer:" + await reader.read())
    writer.close()


async def served() -> AsyncIterator[int]:
    peer = await asyncio.start_server(echo, "127.0.0.2", 0)
    async with peer:
        yield peer.sockets[0].getsockname()[1]


def test_ports_of_another_sandbox(standin: Server, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    async def body() -> None:
        provider = OpenSandboxProvider(
            connection=standin.connection,
            operations={
                "background_exec": True,
                "background_poll_initial_s": 0.02,
                "background_poll_interval_s": 0.1,
            },
            networking={"loopback_forwarding": True, "setup_command": f"echo done > {tmp_path / 'setup'}"},
        )
        handle = await provider.create(SandboxSpec(image="i"))
        async for port in served():
            relay = asyncio.ensure_future(provider.forward_ports(handle, "127.0.0.2", [port], ready_file=str(ready)))
            while not ready.exists():
                assert not relay.done(), relay.result()
                await asyncio.sleep(0.01)
            assert ready.read_text() == "ready"
            assert (tmp_path / "setup").read_text() == "done\n"
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"x" * 100_000)
                writer.write_eof()
                assert await reader.read() == b"peer:" + b"x" * 100_000
                writer.close()
            relay.cancel()
            with pytest.raises(asyncio.CancelledError):
                await relay
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ValueError, match="from 1 to 65535"):
            await provider.forward_ports(handle, "127.0.0.2", [0], ready_file=str(ready))
        with pytest.raises(RuntimeError, match="port forwarding exited"):
            await provider.forward_ports(handle, "127.0.0.2", [80], ready_file=str(tmp_path / "no" / "ready"))
        await provider.close(handle)
        await provider.aclose()

    run(body)


def test_a_setup_that_fails_starts_no_relay(standin: Server, tmp_path: Path) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(
            connection=standin.connection,
            operations={"background_exec": True, "background_poll_initial_s": 0.02},
            networking={"loopback_forwarding": True, "setup_command": "echo broken; exit 4"},
        )
        handle = await provider.create(SandboxSpec(image="i"))
        with pytest.raises(RuntimeError, match=r"setup_command failed .*code 4.*"):
            await provider.forward_ports(handle, "127.0.0.2", [80], ready_file=str(tmp_path / "ready"))
        assert not (tmp_path / "ready").exists()
        await provider.close(handle)
        await provider.aclose()

    run(body)


def test_repeated_attempts_are_counted(standin: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(telemetry, "record_create_retry", counted.append)

    async def body() -> None:
        provider = OpenSandboxProvider(connection=standin.connection, create={"retries": 2, "retry_delay_s": 0.01})
        standin.fail(Method="POST", Path="/v1/sandboxes", Status=503, Times=2)
        await provider.close(await provider.create(SandboxSpec(image="i")))
        assert counted == ["opensandbox"] * 2
        standin.fail(Method="POST", Path="/v1/sandboxes", Status=503, Times=3)
        with pytest.raises(RuntimeError, match="HTTP 503"):
            await provider.create(SandboxSpec(image="i"))
        assert counted == ["opensandbox"] * 4
        await provider.aclose()

    run(body)
