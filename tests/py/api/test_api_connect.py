"""Sandboxes that another process made, and sidecars."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from api_doubles import FullProvider, MemoryProvider

from nemo_gym_sandbox import AsyncSandbox, SandboxSidecarSpec, SandboxSpec, SandboxStatus, register_provider
from nemo_gym_sandbox.providers import registry

if TYPE_CHECKING:
    from pathlib import Path

SIDECARS = [{"name": "recorder", "image": "rec", "env": {"TOKEN": "secret"}, "resources": {"cpu": 1}}]


async def test_serialize_adds_what_exec_and_endpoint_need():
    provider = FullProvider()
    spec = SandboxSpec(workdir="/w", ports=(80,), env={"TOKEN": "secret"}, sidecars=SIDECARS)
    sandbox = await AsyncSandbox(provider, spec).start()
    descriptor = await sandbox.serialize(scope="operate")
    assert descriptor == {
        "sandbox_id": "box-0",
        "scope": "operate",
        "workdir": "/w",
        "ports": [80],
        "sidecars": [{"name": "recorder", "image": "rec"}],
    }
    assert "secret" not in json.dumps(descriptor)
    bare = await (await AsyncSandbox(FullProvider(), SandboxSpec()).start()).serialize()
    assert bare == {"sandbox_id": "box-0", "scope": None, "workdir": None}


async def test_serialize_carries_changed_defaults():
    sandbox = await AsyncSandbox(FullProvider(), SandboxSpec(workdir="/w")).start()
    sandbox.set_default_user("agent")
    sandbox.set_default_workdir("/home/agent")
    descriptor = await sandbox.serialize()
    assert (descriptor["user"], descriptor["workdir"]) == ("agent", "/home/agent")
    provider = FullProvider()
    connected = await AsyncSandbox.connect(descriptor, provider=provider)
    await connected.exec("x")
    assert (provider.execs[0][1]["user"], provider.execs[0][1]["cwd"]) == ("agent", "/home/agent")
    assert await connected.serialize() == descriptor


async def test_a_workdir_that_the_provider_gives_is_kept():
    class Knows(FullProvider):
        async def serialize_handle(self, handle, *, scope=None):
            return {"sandbox_id": "x", "workdir": "/provider"}

    sandbox = await AsyncSandbox(Knows(), SandboxSpec(workdir="/w")).start()
    assert (await sandbox.serialize())["workdir"] == "/provider"


async def test_serialize_and_connect_need_the_capability_first():
    with pytest.raises(RuntimeError, match=r"serialize\(\)"):
        await AsyncSandbox(MemoryProvider()).serialize()
    with pytest.raises(RuntimeError, match=r"serialize\(\)"):
        await AsyncSandbox.connect({"sandbox_id": "x"}, provider=MemoryProvider())
    with pytest.raises(RuntimeError, match="has not been started"):
        await AsyncSandbox(FullProvider()).serialize()


async def test_connect_gives_a_started_sandbox_with_workdir_and_ports():
    provider = FullProvider()
    descriptor = {"sandbox_id": "far", "workdir": "/w", "ports": [80], "sidecars": [{"name": "s", "image": "i"}]}
    sandbox = await AsyncSandbox.connect(descriptor, provider=provider)
    await sandbox.exec("x")
    assert provider.execs[0][1]["cwd"] == "/w"
    assert provider.execs[0][1]["handle"].sandbox_id == "far"
    assert (await sandbox.endpoint(80)).endpoint == "http://127.0.0.1:81"
    assert sandbox.sidecar("s").name == "s"
    with pytest.raises(RuntimeError, match="already started"):
        await sandbox.start(SandboxSpec())
    await sandbox.stop()
    assert provider.calls[-2:] == ["close", "aclose"]


async def test_connect_takes_what_can_turn_itself_into_a_mapping():
    reference = SimpleNamespace(to_dict=lambda: {"sandbox_id": "ref"})
    sandbox = await AsyncSandbox.connect(reference, provider=FullProvider())
    assert sandbox.sandbox_id == "ref"
    with pytest.raises(TypeError, match="mapping"):
        await AsyncSandbox.connect(5, provider=FullProvider())


async def test_connect_refuses_a_descriptor_before_anything_is_taken_up():
    """What was taken up for a descriptor that then could not be used was nobody's any more."""
    provider = FullProvider()
    with pytest.raises(TypeError, match="ports must be a list"):
        await AsyncSandbox.connect({"sandbox_id": "far", "ports": "80"}, provider=provider)
    assert provider.calls == []


async def test_connect_from_a_configuration_closes_what_it_made_when_it_fails(monkeypatch: pytest.MonkeyPatch):
    made: list[FullProvider] = []

    class Unreachable(FullProvider):
        def __init__(self) -> None:
            super().__init__(connect=[RuntimeError("unreachable")])
            made.append(self)

    monkeypatch.setattr(registry, "_registered", {})
    register_provider("unreachable", Unreachable)
    with pytest.raises(RuntimeError, match="unreachable"):
        await AsyncSandbox.connect({"sandbox_id": "x"}, provider={"unreachable": {}})
    assert made[0].calls == ["connect", "aclose"]


async def test_disconnect_lets_go_without_stopping():
    provider = FullProvider()
    sandbox = await AsyncSandbox.connect({"sandbox_id": "far"}, provider=provider)
    await sandbox.disconnect()
    assert await sandbox.status() is SandboxStatus.UNKNOWN
    assert sandbox.sandbox_id is None
    await sandbox.disconnect()
    await sandbox.stop()
    assert provider.calls == ["connect", "disconnect_handle", "aclose"]
    with pytest.raises(RuntimeError, match="disconnected"):
        await sandbox.exec("x")
    with pytest.raises(RuntimeError, match="disconnected"):
        await sandbox.start(SandboxSpec())


async def test_disconnect_leaves_a_provider_that_is_not_owned():
    provider = FullProvider()
    await (await AsyncSandbox.connect({"sandbox_id": "far"}, provider=provider, owns_provider=False)).disconnect()
    assert provider.calls == ["connect", "disconnect_handle"]


async def test_a_failed_disconnect_can_be_repeated():
    provider = FullProvider(disconnect_handle=[RuntimeError("busy")])
    sandbox = await AsyncSandbox.connect({"sandbox_id": "far"}, provider=provider)
    with pytest.raises(RuntimeError, match="busy"):
        await sandbox.disconnect()
    await sandbox.disconnect()
    assert provider.calls == ["connect", "disconnect_handle", "disconnect_handle", "aclose"]


async def test_disconnect_is_for_connected_sandboxes():
    sandbox = await AsyncSandbox(FullProvider(), SandboxSpec()).start()
    with pytest.raises(RuntimeError, match=r"valid only for a sandbox rebuilt with connect\(\)"):
        await sandbox.disconnect()


async def test_sidecars_need_the_capability_before_anything_is_created():
    provider = MemoryProvider()
    with pytest.raises(NotImplementedError, match="'memory' does not support sidecars"):
        await AsyncSandbox(provider, SandboxSpec(sidecars=SIDECARS)).start()
    with pytest.raises(NotImplementedError, match="does not support sidecars"):
        AsyncSandbox(provider).sidecar("recorder")
    assert provider.calls == []


async def test_a_sidecar_has_to_be_declared_and_started():
    sandbox = AsyncSandbox(FullProvider(), SandboxSpec(sidecars=SIDECARS))
    with pytest.raises(ValueError, match=r"'other' was not declared .* declared: \['recorder'\]"):
        sandbox.sidecar("other")
    with pytest.raises(RuntimeError, match="has not been started"):
        sandbox.sidecar("recorder")


async def test_commands_and_files_of_a_sidecar(tmp_path: Path):
    provider = FullProvider()
    sandbox = await AsyncSandbox(provider, SandboxSpec(sidecars=[SandboxSidecarSpec("recorder", "rec")])).start()
    sidecar = sandbox.sidecar("recorder")
    followed: list[str] = []
    assert (await sidecar.exec("record", "--all", timeout_s=None, on_stdout=followed.append)).stdout == "sidecar"
    await sidecar.download("/out", tmp_path / "out")
    assert provider.sidecar_calls == [("exec", "recorder", ["record", "--all"], None), ("download", "recorder", "/out")]
    assert followed == ["following"]
    assert (tmp_path / "out").read_text() == "from the sidecar"
    with pytest.raises(ValueError, match="program"):
        await sidecar.exec()
