"""The agreed names, parameters and defaults, written out. Ours may only add keyword-only parameters with a default."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import pytest

import nemo_gym_sandbox as ngs
from nemo_gym_sandbox import _pty, api, attribution, config, utils
from nemo_gym_sandbox._sync_pty import SyncSandboxPty
from nemo_gym_sandbox.providers import base, registry

if TYPE_CHECKING:
    from collections.abc import Callable

REQUIRED = inspect.Parameter.empty

# name: parameters in order; a bare name is required, a pair has a default
METHODS: dict[Any, dict[str, list[Any]]] = {
    base.SandboxProvider: {
        "create": ["spec"],
        "exec": ["handle", "command", ("cwd", None), ("env", None), ("timeout_s", None), ("user", None)],
        "upload_file": ["handle", "source_path", "target_path"],
        "download_file": ["handle", "source_path", "target_path"],
        "status": ["handle"],
        "close": ["handle"],
        "aclose": [],
    },
    base.SandboxPtySession: {
        "__aenter__": [],
        "__aexit__": ["exc_type", "exc_val", "exc_tb"],
        "__aiter__": [],
        "close": [],
        "read": [("timeout_s", None)],
        "read_stderr": [("timeout_s", None)],
        "resize": ["rows", "cols"],
        "send_signal": ["signal"],
        "wait_exit": [("timeout_s", None)],
        "write": ["data"],
    },
    base.ConnectableProvider: {"serialize_handle": ["handle", ("scope", None)], "connect": ["descriptor"]},
    base.SupportsSandboxEndpoint: {"endpoint": ["handle", "port"]},
    base.SupportsSandboxPty: {"create_pty": ["handle", "spec"]},
    base.SupportsSandboxPtyAttach: {"attach_pty": ["handle", "session_id", ("takeover", True), ("since", None)]},
    base.SandboxResources: {"from_mapping": ["resources"]},
    api.AsyncSandbox: {
        "__init__": ["provider", ("spec", None), ("owns_provider", True)],
        "start": [("spec", None)],
        "start_with_setup": ["spec", "setup"],
        "exec": [
            "command",
            ("cwd", None),
            ("env", None),
            ("timeout_s", 180),
            ("user", None),
            ("preserve_background_services", False),
        ],
        "upload": ["local", "remote"],
        "download": ["remote", "local"],
        "status": [],
        "endpoint": ["port"],
        "pause": [],
        "resume": [],
        "stop": [],
        "set_default_user": ["user"],
        "set_default_workdir": ["workdir"],
        "sidecar": ["name"],
        "serialize": [("scope", None)],
        "connect": ["descriptor", "provider", ("owns_provider", True)],
        "disconnect": [],
        "__aenter__": [],
        "__aexit__": ["exc_type", "exc_val", "exc_tb"],
    },
    ngs.SandboxPty: {
        "create": [
            ("command", None),
            ("cwd", None),
            ("env", None),
            ("rows", 24),
            ("cols", 80),
            ("user", None),
            ("pty", True),
        ],
        "attach": ["session_id", ("takeover", True), ("since", None)],
        "exec": [
            "command",
            ("session", None),
            ("cwd", None),
            ("env", None),
            ("timeout_s", 180),
            ("user", None),
            ("rows", 24),
            ("cols", 80),
            ("pty", True),
            ("detach", False),
            ("poll_interval_s", 15.0),
        ],
    },
    ngs.SandboxSidecar: {"download": ["remote", "local"]},
}

FUNCTIONS: dict[Callable[..., Any], list[Any]] = {
    registry.register_provider: ["name", "cls", ("override", False)],
    registry.get_provider_class: ["name"],
    registry.list_providers: [],
    registry.create_provider: ["provider"],
    config.resolve_provider_config: ["ref", ("named", None)],
    config.resolve_provider_metadata: ["ref", ("named", None)],
    utils.rewrite_image: ["image", "rewrites"],
    utils.cpu_cap_env: ["cpu"],
    utils.read_text: ["sandbox", "path"],
    attribution.resolve_attribution: [("team", None), ("user", None), ("workload", None), ("environ", None)],
    attribution.resolve_run_id: [("run", None), ("environ", None)],
    attribution.log_attribution_once: ["metadata"],
}

DATACLASSES: dict[Any, list[Any]] = {
    base.SandboxSpec: [
        ("image", None),
        ("ttl_s", None),
        ("ready_timeout_s", None),
        ("workdir", None),
        ("env", {}),
        ("files", {}),
        ("metadata", {}),
        ("resources", base.SandboxResources()),
        ("entrypoint", None),
        ("provider_options", {}),
        ("ports", ()),
        ("sidecars", ()),
    ],
    base.SandboxResources: [
        ("cpu", None),
        ("memory_mib", None),
        ("disk_gib", None),
        ("gpu", None),
        ("gpu_type", None),
    ],
    base.SandboxExecResult: ["stdout", "stderr", "return_code", ("error_type", None)],
    base.SandboxHandle: ["sandbox_id", "provider_name", "raw"],
    base.SandboxEndpoint: ["endpoint", ("headers", {})],
    base.SandboxPtySpec: [
        ("command", None),
        ("cwd", None),
        ("env", None),
        ("rows", 24),
        ("cols", 80),
        ("user", None),
        ("pty", True),
    ],
    base.SandboxSidecarSpec: ["name", "image", ("env", {}), ("resources", base.SandboxResources())],
}

ROOT = [
    "AsyncSandbox", "ConnectableProvider", "ExecResult", "Sandbox", "SandboxCreateError",
    "SandboxCreateVerificationError", "SandboxEndpoint", "SandboxExecResult", "SandboxHandle", "SandboxProvider",
    "SandboxPty", "SandboxPtyError", "SandboxPtySession", "SandboxPtySpec", "SandboxResources", "SandboxSidecarSpec",
    "SandboxSpec", "SandboxStatus", "SupportsSandboxEndpoint", "SupportsSandboxNetwork", "SupportsSandboxPauseResume",
    "SupportsSandboxPortForwarding", "SupportsSandboxPty", "SupportsSandboxPtyAttach",
    "SupportsSandboxRuntimeRequirements", "SupportsSandboxSharedStorage", "SupportsSandboxSidecars", "create_provider",
    "get_provider_class", "list_providers", "register_provider", "resolve_provider_config",
    "resolve_provider_metadata", "rewrite_image",
]  # fmt: skip


def shape(parameters: list[inspect.Parameter]) -> list[Any]:
    return [p.name if p.default is REQUIRED else (p.name, p.default) for p in parameters]


def compare(function: Callable[..., Any], expected: list[Any]) -> None:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    assert shape(parameters[: len(expected)]) == expected
    for added in parameters[len(expected) :]:
        assert added.kind is inspect.Parameter.KEYWORD_ONLY, added
        assert added.default is not REQUIRED, added


@pytest.mark.parametrize(
    ("cls", "name", "expected"),
    [(cls, name, expected) for cls, methods in METHODS.items() for name, expected in methods.items()],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)
def test_methods(cls: Any, name: str, expected: list[Any]):
    compare(getattr(cls, name), expected)


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_functions(function: Callable[..., Any], expected: list[Any]):
    compare(function, expected)


@pytest.mark.parametrize(("cls", "expected"), DATACLASSES.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_dataclasses(cls: Any, expected: list[Any]):
    def default(field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return field.default

    fields = [
        field.name if default(field) is dataclasses.MISSING else (field.name, default(field))
        for field in dataclasses.fields(cls)
    ]
    assert fields[: len(expected)] == expected
    assert all(field.kw_only for field in dataclasses.fields(cls)[len(expected) :])


def test_the_blocking_face_has_the_same_parameters():
    for name in METHODS[api.AsyncSandbox]:
        twin = {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(name, name)
        ours, theirs = (
            [(p.name, p.default, p.kind) for p in inspect.signature(getattr(cls, method)).parameters.values()]
            for cls, method in ((api.AsyncSandbox, name), (ngs.Sandbox, twin))
        )
        assert ours == theirs, name
    for name in METHODS[_pty.SandboxPty]:
        assert shape([*inspect.signature(getattr(SyncSandboxPty, name)).parameters.values()]) == shape(
            [*inspect.signature(getattr(_pty.SandboxPty, name)).parameters.values()]
        )


def test_root_names():
    assert set(ROOT) <= set(ngs.__all__)


def test_what_a_call_may_not_give_by_position():
    for method in (api.AsyncSandbox.exec, _pty.SandboxPty.exec, _pty.SandboxPty.create):
        optional = list(inspect.signature(method).parameters.values())[2:]
        assert {parameter.kind for parameter in optional} == {inspect.Parameter.KEYWORD_ONLY}


def test_exceptions():
    assert base.SandboxCreateError.__bases__ == (RuntimeError,)
    assert base.SandboxCreateVerificationError.__bases__ == (base.SandboxCreateError,)
    assert base.SandboxPtyError.__bases__ == (RuntimeError,)
    assert base.ExecResult is base.SandboxExecResult
