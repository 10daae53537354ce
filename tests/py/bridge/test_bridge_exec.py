"""Commands with collected output, and what is refused."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym_sandbox._core import codec, errors
from nemo_gym_sandbox._core.lib import library
from nemo_gym_sandbox._core.loop import running_bridge
from nemo_gym_sandbox.providers.base import (
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxPtyError,
    SandboxResources,
    SandboxSidecarSpec,
    SandboxSpec,
    SandboxStatus,
)

from .conftest import Box, Mem


async def test_result_has_both_outputs_and_the_code(box: Box) -> None:
    result = await box.exec("echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("out\n", "err\n", 7, None)
    quiet = await box.exec("true")
    assert (quiet.stdout, quiet.stderr, quiet.return_code, quiet.truncated) == ("", "", 0, False)


@pytest.mark.parametrize("size", [1, 32768, 32769, 1 << 20, (3 << 20) + 17])
async def test_large_outputs_are_complete(box: Box, size: int) -> None:
    result = await box.exec(f"yes {size} abc; yes {size} é >&2")
    assert result.stdout == ("abc\n" * size)[:size]
    assert result.stderr == ("é\n" * size).encode()[:size].decode("utf-8", "replace")
    assert library().stats()["streams"] == 0


async def test_large_text_is_an_ordinary_str(box: Box) -> None:
    """It is filled after Python made it: its hash, its copies and its encoding must be those of any other."""
    text = (await box.exec("yes 100000 abc")).stdout
    twin = "".join(["abc\n"] * 25000)
    assert hash(text) == hash(twin)
    assert text == twin
    assert text.encode() == twin.encode()
    assert {text: 1}[twin] == 1
    assert text.isascii()
    assert text[1:5] == twin[1:5]
    del text
    gc.collect()


async def test_what_is_no_utf8_is_replaced(box: Box, tmp_path: Path) -> None:
    for size in (3, 200_000):
        (tmp_path / "f").write_bytes(b"\xff\xfe" * size + b"ok")
        await box.provider.upload_file(box.handle, tmp_path / "f", "/f")
        result = await box.exec("cat /f")
        assert result.stdout == "\ufffd" * 2 * size + "ok"


async def test_characters_across_copies_stay_whole(box: Box) -> None:
    size = 4 * 700_000
    result = await box.exec(f"yes {size} ☕")
    assert result.stdout == "☕\n" * (size // 4)


async def test_timeout_is_a_result(box: Box) -> None:
    result = await box.exec("echo before; echo warn >&2; sleep 100", timeout_s=0.1)
    assert (result.stdout, result.return_code, result.error_type) == ("before\n", 125, "timeout")
    assert result.stderr == "warn\nmem command timed out after 0.1s"
    assert (await box.exec("sleep 100", timeout_s=0.1)).stderr == "mem command timed out after 0.1s"


async def test_the_reason_is_a_line_of_its_own(box: Box, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"no newline")
    await box.provider.upload_file(box.handle, tmp_path / "f", "/f")
    result = await box.exec("cat /f >&2; sleep 100", timeout_s=0.1)
    assert result.stderr.splitlines() == ["no newline", "mem command timed out after 0.1s"]


async def test_truncated_is_told() -> None:
    provider = Mem({"max_output_bytes": 1000})
    handle = await provider.create(SandboxSpec())
    cut = await provider.exec(handle, "yes 3000")
    whole = await provider.exec(handle, "yes 1000")
    assert cut.truncated
    assert cut.stdout is not None
    assert "2000 bytes omitted" in cut.stdout
    assert not whole.truncated
    await provider.close(handle)


async def test_default_timeout_is_the_providers() -> None:
    provider = Mem({"default_timeout_s": 0.1})
    handle = await provider.create(SandboxSpec())
    assert (await provider.exec(handle, "sleep 100")).error_type == "timeout"
    await provider.close(handle)


@pytest.mark.parametrize("bad", [0, -1, -0.5, float("nan"), float("-inf")])
async def test_timeouts_must_be_positive(box: Box, bad: float) -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        await box.exec("true", timeout_s=bad)


@pytest.mark.parametrize("endless", [float("inf"), 1e300, 10**400], ids=["inf", "1e300", "10**400"])
async def test_no_timeout_at_all(box: Box, endless: float) -> None:
    assert (await box.exec("echo x", timeout_s=endless)).stdout == "x\n"


@pytest.mark.parametrize(
    ("user", "expected"), [(None, "root"), ("root", "root"), (0, "root"), (1000, "1000"), ("me", "me")]
)
async def test_users(box: Box, user: str | int | None, expected: str) -> None:
    assert (await box.exec("whoami", user=user)).stdout == f"{expected}\n"


async def test_arguments_reach_the_command(box: Box) -> None:
    result = await box.exec("pwd; env A", cwd="/some where", env={"A": "ü\n☕"})
    assert result.stdout == "/some where\nü\n☕\n"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"env": {"A": 1}}, TypeError, "'A' is str to int"),
        ({"env": {1: "secret-value"}}, TypeError, "1 is int to str"),
        ({"env": [("A", "1")]}, TypeError, "must be a mapping, not list"),
        ({"env": {"": "x"}}, ValueError, "variable name"),
        ({"cwd": b"/tmp"}, TypeError, "must be text, not bytes"),
        ({"timeout_s": "5"}, TypeError, "timeout_s must be a number"),
        ({"timeout_s": True}, TypeError, "timeout_s must be a number"),
        ({"user": True}, TypeError, "user must be"),
        ({"user": 1.5}, TypeError, "user must be"),
        ({"cwd": "a\0b"}, ValueError, "NUL"),
    ],
)
async def test_bad_arguments(box: Box, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        await box.exec("true", **options)
    assert "secret-value" not in str(caught.value)


async def test_bad_commands(box: Box) -> None:
    with pytest.raises(TypeError, match="command must be a str"):
        await box.exec(b"true")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NUL"):
        await box.exec("a\0b")
    with pytest.raises(ValueError, match="surrogates not allowed") as caught:
        await box.exec("echo \udc80", env={"A": "secret-value"})
    assert "secret-value" not in repr(caught.value)
    assert caught.value.__context__ is None  # it would hold the whole request


async def test_files(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(b"\0\xffdata")
    await box.provider.upload_file(box.handle, Path("in"), "/dir/up")
    await box.provider.download_file(box.handle, "/dir/up", Path("deep/er/out"))
    assert (tmp_path / "deep/er/out").read_bytes() == b"\0\xffdata"
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        await box.provider.download_file(box.handle, "/nowhere", Path("out"))
    with pytest.raises(FileNotFoundError, match="missing"):
        await box.provider.upload_file(box.handle, Path("missing"), "/x")


async def test_the_life_of_a_sandbox() -> None:
    provider = Mem({})
    spec = SandboxSpec(
        image="i",
        ttl_s=60,
        workdir="/w",
        env={"A": "1"},
        files={"f": "text", "/w/g": "ü"},
        metadata={"m": "x"},
        resources=SandboxResources(cpu=0.5, memory_mib=64),
        ports=[8080],
        provider_options={"anything": [1, {"x": None}]},
        sidecars=[SandboxSidecarSpec("s", "image")],
    )
    handle = await provider.create(spec)
    assert handle.provider_name == "mem"
    assert (await provider.exec(handle, "pwd; env A; cat f g")).stdout == "/w\n1\ntextü"
    assert await provider.status(handle) is SandboxStatus.RUNNING
    await provider.pause(handle)
    assert await provider.status(handle) is SandboxStatus.PAUSED
    await provider.resume(handle)
    assert (await provider.endpoint(handle, 8080)).endpoint == f"mem://{handle.sandbox_id}:8080"
    await provider.set_defaults(handle, user="me", workdir="/d")
    descriptor = json.loads(json.dumps(await provider.serialize_handle(handle)))
    other = await provider.connect(descriptor)
    assert other.sandbox_id == handle.sandbox_id
    assert (await provider.exec(other, "pwd; whoami")).stdout == "/d\nme\n"
    with pytest.raises(RuntimeError, match="disconnect is valid only"):
        await provider.disconnect_handle(handle)
    await provider.disconnect_handle(other)
    assert (await provider.exec_with_background_services(handle, "env B", env={"B": "2"})).stdout == "2\n"
    await provider.close(handle)
    await provider.close(handle)
    assert await provider.status(handle) is SandboxStatus.STOPPED
    with pytest.raises(RuntimeError, match="has been stopped"):
        await provider.exec(handle, "true")
    await provider.aclose()
    await provider.aclose()
    with pytest.raises(RuntimeError, match="provider has been closed"):
        await provider.create(SandboxSpec())


async def test_dropped_handles_are_let_go_of() -> None:
    provider = Mem({})
    gc.collect()  # what earlier tests dropped
    before = library().stats()
    handles = [await provider.create(SandboxSpec()) for _ in range(10)]
    assert library().stats()["sandboxes"] == before["sandboxes"] + 10
    handles.clear()
    gc.collect()
    assert library().stats()["sandboxes"] == before["sandboxes"]
    del provider
    gc.collect()
    assert library().stats()["providers"] == before["providers"] - 1


def test_configuration_is_checked_at_construction() -> None:
    with pytest.raises(
        TypeError, match=r'unknown configuration key "max_output_byte"; allowed: .*did you mean "max_output_bytes"'
    ):
        Mem({"max_output_byte": 1})
    with pytest.raises(ValueError, match="default_timeout_s must be positive"):
        Mem({"default_timeout_s": -1})
    with pytest.raises(ValueError, match="configuration"):
        Mem({"default_timeout_s": "x"})
    with pytest.raises(TypeError, match="not JSON serializable"):
        Mem({"default_timeout_s": object()})

    class Nope(Mem):
        name = "mme"

    with pytest.raises(ValueError, match=r'Unknown sandbox provider "mme"; available: .*did you mean "mem"'):
        Nope({})


class OwnError(SandboxCreateError):
    pass


class OwnVerificationError(OwnError, SandboxCreateVerificationError):
    pass


class Failing(Mem):
    create_error = OwnError
    verification_error = OwnVerificationError


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("create", OwnError),
        ("verification", OwnVerificationError),
        ("timeout", OwnError),
        ("sandbox", OwnError),
        ("not_found", OwnError),
        ("auth", OwnError),
        ("internal", OwnError),
        ("not_supported", NotImplementedError),
        ("invalid", ValueError),
        ("unknown_key", TypeError),
    ],
)
async def test_a_failed_create_has_its_exception(kind: str, error: type[Exception]) -> None:
    provider = Failing({"fail_create": kind})
    with pytest.raises(error, match="configured to fail") as caught:
        await provider.create(SandboxSpec())
    assert type(caught.value) is error
    assert caught.value.kind == kind  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "op", "error"),
    [
        ("pty", codec.EXEC, SandboxPtyError),
        ("timeout", codec.STATUS, TimeoutError),
        ("not_found", codec.CONNECT, SandboxCreateError),
        ("sandbox", codec.CONNECT, SandboxCreateError),
        ("verification", codec.CREATE, SandboxCreateVerificationError),
        ("not_found", codec.DOWNLOAD, errors.SandboxFileNotFoundError),
        ("sandbox", codec.UPLOAD, errors.SandboxFileError),
        ("not_started", codec.EXEC, RuntimeError),
        ("conflict", codec.STOP, RuntimeError),
        ("closed", codec.CREATE, RuntimeError),
        ("auth", codec.EXEC, RuntimeError),
        ("a kind of tomorrow", codec.EXEC, RuntimeError),
    ],
)
def test_kinds_and_exceptions(kind: str, op: int, error: type[Exception]) -> None:
    made = errors.exception_for({"kind": kind, "message": "what and why"}, op)
    assert type(made) is error
    assert str(made) == "what and why"


async def test_a_fault_of_the_library_is_an_exception(box: Box) -> None:
    bridge = running_bridge()
    before = library().stats()["panics"]
    for what in ("panic", "nil"):
        reply = await bridge.call(codec.TEST, codec.encode({"what": what}))
        with pytest.raises(RuntimeError, match="fault in the sandbox library"):
            raise errors.failure(reply, codec.TEST)
    assert library().stats()["panics"] == before + 2
    assert (await box.exec("echo still here")).stdout == "still here\n"


async def test_handles_of_others_are_refused(box: Box) -> None:
    from nemo_gym_sandbox.providers.base import SandboxHandle

    with pytest.raises(TypeError, match="is not one of mem's"):
        await box.provider.exec(SandboxHandle("x", "other", object()), "true")


async def test_invalid_specs_are_refused() -> None:
    provider = Mem({})
    with pytest.raises(ValueError, match="must be an absolute path"):
        await provider.create(SandboxSpec(workdir="relative"))
    with pytest.raises(ValueError, match="must not be negative"):
        await provider.create(SandboxSpec(ttl_s=-1))
    with pytest.raises(TypeError, match="'A' is str to int"):
        await provider.create(SandboxSpec(env={"A": 5}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"ttl_s": "5"}, TypeError, "ttl_s must be a number or None, not str"),
        ({"ttl_s": True}, TypeError, "ttl_s must be a number or None, not bool"),
        ({"ttl_s": float("nan")}, ValueError, "ttl_s must be a finite number, got nan"),
        ({"ready_timeout_s": float("inf")}, ValueError, "ready_timeout_s must be a finite number, got inf"),
        ({"image": 5}, TypeError, "image must be a str or None, not int"),
        ({"workdir": 5}, TypeError, "workdir must be a str or None, not int"),
        ({"entrypoint": "sleep 5"}, TypeError, "entrypoint must be a list of str or None, not str"),
        ({"entrypoint": ["sleep", 5]}, TypeError, "entrypoint must be a list of str, but 5 is int"),
        ({"env": [("A", "1")]}, TypeError, "must be a mapping, not list"),
        ({"files": {"/f": b"secret-value"}}, TypeError, "'/f' is str to bytes"),
        ({"files": ["/f"]}, TypeError, "files must be a mapping of paths to text, not list"),
        ({"metadata": ["a"]}, TypeError, "metadata must be a mapping, not list"),
        ({"resources": {"cpu": "inf"}}, ValueError, "resources.cpu must be a finite number"),
        ({"resources": SandboxResources(cpu="2")}, TypeError, "resources.cpu must be a number or None, not str"),  # type: ignore[arg-type]
        ({"resources": SandboxResources(memory_mib=0.5)}, TypeError, "resources.memory_mib must be a whole number"),  # type: ignore[arg-type]
        ({"resources": SandboxResources(memory_mib=10**30)}, ValueError, "resources.memory_mib is larger"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_fields_of_a_spec_are_named_in_its_errors(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    """They spoke of the border's JSON, and not of the field and the type that it should have."""
    with pytest.raises(error, match=re.escape(text)) as caught:
        await Mem({}).create(SandboxSpec(**fields))
    assert "secret-value" not in str(caught.value)


async def test_a_spec_may_be_as_configurations_write_it() -> None:
    provider = Mem({})
    spec = SandboxSpec(metadata={"task": 7, "none": None}, files=None, entrypoint=("a", "b"))  # type: ignore[arg-type, dict-item]
    assert codec.encode_spec(spec)["metadata"] == {"task": "7", "none": ""}
    await provider.close(await provider.create(spec))


def test_what_belongs_to_a_process_cannot_be_copied_to_another() -> None:
    """A copy failed half made, and its end complained that there was nothing to let go of."""
    provider = Mem({})
    for work in (pickle.dumps, copy.deepcopy, lambda one: copy.copy(one._native)):
        with pytest.raises(TypeError, match=r"hand sandboxes over with serialize\(\) and connect\(\)"):
            work(provider)
