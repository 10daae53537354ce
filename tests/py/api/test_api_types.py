"""The plain data: conversions, checks, equality, and what its text form must not show."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from api_doubles import FullProvider, MemoryProvider

import nemo_gym_sandbox as ngs
from nemo_gym_sandbox.providers import base


def test_spec_fields_in_order_with_defaults():
    assert [field.name for field in dataclasses.fields(ngs.SandboxSpec)] == [
        "image", "ttl_s", "ready_timeout_s", "workdir", "env", "files", "metadata", "resources", "entrypoint",
        "provider_options", "ports", "sidecars",
    ]  # fmt: skip
    spec = ngs.SandboxSpec()
    assert (spec.image, spec.ttl_s, spec.ready_timeout_s, spec.workdir, spec.entrypoint) == (None,) * 5
    assert (spec.env, spec.files, spec.metadata, spec.provider_options) == ({}, {}, {}, {})
    assert (spec.ports, spec.sidecars, spec.resources) == ((), (), ngs.SandboxResources())
    assert ngs.SandboxSpec().env is not spec.env
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.image = "x"  # type: ignore[misc]


def test_resources_from_a_mapping_converts_numbers_in_strings():
    spec = ngs.SandboxSpec(
        resources={
            "cpu": "2",
            "memory_mib": "512",
            "disk_gib": 3.0,
            "gpu": "1",
            "gpu_type": 100,
        }
    )
    assert spec.resources == ngs.SandboxResources(2.0, 512, 3, 1, "100")
    assert ngs.SandboxSpec(resources={"cpu": None}).resources == ngs.SandboxResources()
    assert ngs.SandboxResources.from_mapping(None) == ngs.SandboxResources()


def test_resources_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match=r"Unknown sandbox resource keys: \['ram', 'zap'\]; expected keys: \['cpu'"):
        ngs.SandboxSpec(resources={"zap": 1, "ram": 1})
    with pytest.raises(ValueError, match="memory_mib"):
        ngs.SandboxSpec(resources={"memory_mib": "lots"})
    with pytest.raises(ValueError, match="whole"):
        ngs.SandboxSpec(resources={"memory_mib": 1.5})
    with pytest.raises(TypeError, match="mapping"):
        ngs.SandboxSpec(resources=[1])  # type: ignore[arg-type]


def test_ports_are_checked_and_kept_in_order():
    assert ngs.SandboxSpec(ports=["8080", 22]).ports == (8080, 22)  # type: ignore[list-item]
    for wrong in ("80", {80}, 80):
        with pytest.raises(TypeError, match="list or tuple"):
            ngs.SandboxSpec(ports=wrong)  # type: ignore[arg-type]
    for wrong in (True, 8.0, "http", None):
        with pytest.raises(ValueError, match="Invalid sandbox TCP port"):
            ngs.SandboxSpec(ports=[wrong])  # type: ignore[list-item]
    for wrong in (0, 65536, -1):
        with pytest.raises(ValueError, match="between 1 and 65535"):
            ngs.SandboxSpec(ports=[wrong])
    with pytest.raises(ValueError, match="Duplicate sandbox TCP port"):
        ngs.SandboxSpec(ports=[80, "80"])  # type: ignore[list-item]


def test_sidecars_are_specs_or_mappings_with_unique_names():
    spec = ngs.SandboxSpec(sidecars=[{"name": "a", "image": "i", "resources": {"cpu": "1"}}])
    assert spec.sidecars == (ngs.SandboxSidecarSpec("a", "i", resources=ngs.SandboxResources(cpu=1.0)),)
    with pytest.raises(TypeError, match="list or tuple"):
        ngs.SandboxSpec(sidecars={"name": "a"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names must be unique"):
        ngs.SandboxSpec(sidecars=[ngs.SandboxSidecarSpec("a", "i"), ngs.SandboxSidecarSpec("a", "j")])
    for name, image in (("", "i"), ("a", "")):
        with pytest.raises(ValueError, match="needs a name and an image"):
            ngs.SandboxSidecarSpec(name, image)
    with pytest.raises(ValueError, match="needs a name and an image"):
        ngs.SandboxSpec(sidecars=[{"name": "a"}])
    with pytest.raises(ValueError, match="Unknown sandbox resource keys"):
        ngs.SandboxSpec(sidecars=[{"name": "a", "image": "i", "resources": {"ram": 1}}])


def test_endpoint_is_an_absolute_url():
    endpoint = ngs.SandboxEndpoint("  http://host:1/x ", {1: 2})  # type: ignore[dict-item]
    assert (endpoint.endpoint, endpoint.headers) == ("http://host:1/x", {"1": "2"})
    for wrong in ("host:80", "/path", "http://", "", 5, "http://[::1"):
        with pytest.raises(ValueError, match="absolute URL"):
            ngs.SandboxEndpoint(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mapping"):
        ngs.SandboxEndpoint("http://host", ["x"])  # type: ignore[arg-type]


def test_results_and_handles_compare_by_value():
    assert ngs.ExecResult is ngs.SandboxExecResult
    assert ngs.SandboxExecResult("o", "e", 0) == ngs.SandboxExecResult("o", "e", 0, None, truncated=False)
    assert ngs.SandboxExecResult("o", "e", 0, truncated=True) != ngs.SandboxExecResult("o", "e", 0)
    handle = ngs.SandboxHandle("a", "b", 1)
    assert handle == ngs.SandboxHandle("a", "b", 1)
    handle.raw = 2
    assert handle != ngs.SandboxHandle("a", "b", 1)


def test_status_is_text():
    assert [status.value for status in ngs.SandboxStatus] == [
        "starting", "running", "paused", "stopped", "error", "unknown",
    ]  # fmt: skip
    assert ngs.SandboxStatus("paused") is ngs.SandboxStatus.PAUSED
    assert ngs.SandboxStatus.RUNNING == "running"


def test_errors_are_runtime_errors():
    assert issubclass(ngs.SandboxCreateVerificationError, ngs.SandboxCreateError)
    assert issubclass(ngs.SandboxCreateError, RuntimeError)
    assert issubclass(ngs.SandboxPtyError, RuntimeError)


def test_text_forms_do_not_show_secrets():
    secret = "hunter2"
    shown = [
        repr(ngs.SandboxSpec(env={"K": secret}, files={"f": secret}, provider_options={"auth": secret})),
        repr(ngs.SandboxEndpoint("http://h", {"Authorization": secret})),
        repr(ngs.SandboxHandle("i", "p", {"token": secret})),
        repr(ngs.SandboxPtySpec(env={"K": secret})),
        repr(ngs.SandboxSidecarSpec("n", "i", {"K": secret})),
    ]
    assert not [text for text in shown if secret in text]


CAPABILITIES = {
    "ConnectableProvider": ("serialize_handle", "connect"),
    "SupportsSandboxBackgroundServices": ("exec_with_background_services",),
    "SupportsSandboxDefaults": ("set_defaults",),
    "SupportsSandboxDisconnect": ("disconnect_handle",),
    "SupportsSandboxEndpoint": ("endpoint",),
    "SupportsSandboxExecStream": ("exec_stream",),
    "SupportsSandboxNetwork": ("validate_networking", "network_address", "set_hosts"),
    "SupportsSandboxPauseResume": ("pause", "resume"),
    "SupportsSandboxPortForwarding": ("validate_port_forwarding", "forward_ports"),
    "SupportsSandboxPty": ("create_pty",),
    "SupportsSandboxPtyAttach": ("attach_pty",),
    "SupportsSandboxRuntimeRequirements": ("validate_runtime_requirements", "configure_runtime"),
    "SupportsSandboxSharedStorage": ("shared_volume_options", "shared_volume_metadata"),
    "SupportsSandboxSidecars": ("sidecar_exec", "download_sidecar_file"),
    "SupportsSandboxSnapshot": ("snapshot", "delete_snapshot"),
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_capability_is_having_its_methods(name: str):
    protocol = getattr(base, name)
    methods = {method: lambda self: None for method in CAPABILITIES[name]}
    assert isinstance(type("Has", (), methods)(), protocol)
    for missing in methods:
        assert not isinstance(type("Lacks", (), {m: f for m, f in methods.items() if m != missing})(), protocol)


def test_plain_providers_satisfy_the_protocol():
    assert isinstance(MemoryProvider(), ngs.SandboxProvider)
    assert not isinstance(MemoryProvider(), base.SupportsSandboxPauseResume)
    assert isinstance(FullProvider(), base.SupportsSandboxPauseResume)


def test_every_public_name_is_there():
    assert len(ngs.__all__) == len(set(ngs.__all__))
    for name in ngs.__all__:
        assert getattr(ngs, name) is not None
    assert set(ngs.__all__) <= set(dir(ngs))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ngs.nonsense


def test_hints_resolve_at_run_time():
    for cls in (ngs.SandboxSpec, ngs.SandboxExecResult, ngs.SandboxPtySpec):
        assert typing.get_type_hints(cls)
    for method in ("create", "exec", "upload_file", "download_file", "status", "close"):
        assert typing.get_type_hints(getattr(ngs.SandboxProvider, method))
