"""What reaches the provider of a command, and streaming both ways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
from api_doubles import FullProvider, MemoryProvider

from nemo_gym_sandbox import AsyncSandbox, SandboxEndpoint, SandboxExecResult, SandboxSpec
from nemo_gym_sandbox.utils import read_text

if TYPE_CHECKING:
    from pathlib import Path


async def started(provider: MemoryProvider, **spec: object) -> AsyncSandbox:
    return await AsyncSandbox(provider, SandboxSpec(**spec)).start()  # type: ignore[arg-type]


async def test_arguments_pass_through_and_cwd_falls_back():
    provider = MemoryProvider()
    sandbox = await started(provider, workdir="/w")
    assert await sandbox.exec("a") == SandboxExecResult("ran a", "", 0)
    await sandbox.exec("b", cwd="/c", env={"K": "v"}, timeout_s=None, user=0)
    handle = provider.handles[0]
    assert provider.execs == [
        ("a", {"handle": handle, "cwd": "/w", "env": None, "timeout_s": 180, "user": None}),
        ("b", {"handle": handle, "cwd": "/c", "env": {"K": "v"}, "timeout_s": None, "user": 0}),
    ]


async def test_exec_is_called_with_keywords():
    provider = MemoryProvider()
    sandbox = await started(provider)
    provider.exec = AsyncMock(return_value="as it is")  # type: ignore[method-assign]
    assert await sandbox.exec("x", timeout_s=3) == "as it is"
    provider.exec.assert_awaited_once_with(provider.handles[0], "x", cwd=None, env=None, timeout_s=3, user=None)


async def test_defaults_apply_where_the_call_says_nothing():
    provider = MemoryProvider()
    sandbox = await started(provider, workdir="/w")
    sandbox.set_default_user("agent")
    sandbox.set_default_workdir("/home/agent")
    await sandbox.exec("a")
    await sandbox.exec("b", user=0, cwd="/")
    sandbox.set_default_user(None)
    sandbox.set_default_workdir(None)
    await sandbox.exec("c")
    assert [(call["user"], call["cwd"]) for _, call in provider.execs] == [
        ("agent", "/home/agent"), (0, "/"), (None, "/w"),
    ]  # fmt: skip


async def test_the_provider_hears_of_changed_defaults_before_files_depend_on_them(tmp_path: Path):
    (tmp_path / "f").write_text("x")
    provider = FullProvider()
    sandbox = AsyncSandbox(provider, SandboxSpec(workdir="/w", files={"/a": "x"}))
    sandbox.set_default_user("early")
    await sandbox.start()
    assert provider.calls == ["create", "set_defaults", "upload_file"]
    sandbox.set_default_user("agent")
    sandbox.set_default_workdir("/home/agent")
    await sandbox.exec("x")
    await sandbox.upload(tmp_path / "f", "f")
    await sandbox.upload(tmp_path / "f", "f")
    sandbox.set_default_user(None)
    await sandbox.serialize()
    assert provider.defaults == [("early", "/w"), ("agent", "/home/agent"), (None, "/home/agent")]


async def test_services_are_preserved_where_the_provider_can():
    full, plain = FullProvider(), MemoryProvider()
    assert (await (await started(full, workdir="/w")).exec("s", preserve_background_services=True)).stdout == "served"
    assert full.services == [("s", {"cwd": "/w", "timeout_s": 180, "env": None, "user": None})]
    assert full.execs == []
    await (await started(plain)).exec("s", env={"K": "v"}, user="u", preserve_background_services=True)
    assert plain.execs[0][1]["env"] == {"K": "v"}
    assert plain.execs[0][1]["user"] == "u"


async def test_services_get_env_and_user_only_where_the_method_takes_them():
    full = FullProvider()
    await (await started(full)).exec("s", env={"K": "v"}, user="u", preserve_background_services=True)
    assert full.services[0][1]["env"] == {"K": "v"}
    assert full.services[0][1]["user"] == "u"

    class Old(MemoryProvider):
        async def exec_with_background_services(self, handle, command, *, cwd=None, timeout_s=None):
            self.calls.append("services")
            return SandboxExecResult("", "", 0)

    old = Old()
    sandbox = await started(old)
    await sandbox.exec("s", preserve_background_services=True)
    for extra in ({"env": {"K": "v"}}, {"user": 0}):
        with pytest.raises(ValueError, match="does not support per-command env or user"):
            await sandbox.exec("s", preserve_background_services=True, **extra)  # type: ignore[arg-type]
    sandbox.set_default_user("u")  # running as somebody else would be worse than refusing
    with pytest.raises(ValueError, match="does not support per-command env or user"):
        await sandbox.exec("s", preserve_background_services=True)
    assert old.calls == ["create", "services"]
    assert old.execs == []


async def test_output_arrives_in_order_decoded_and_is_not_kept():
    provider = FullProvider()
    cup = "☕".encode()
    provider.script = [
        ("stdout", b"one " + cup[:1]), ("stdout", cup[1:2]), ("stderr", b"warn"), ("stdout", cup[2:] + b" two\xff"),
        ("stdout", cup[:2]),
    ]  # fmt: skip
    seen: list[str] = []
    result = await (await started(provider, workdir="/w")).exec("x", user="u", timeout_s=9, on_stdout=seen.append)
    assert "".join(seen) == "one ☕ two\ufffd\ufffd"
    assert "" not in seen
    assert (result.stdout, result.stderr) == (None, "warn")
    assert provider.streams == [{"command": "x", "cwd": "/w", "env": None, "timeout_s": 9, "user": "u"}]
    assert provider.execs == []


async def test_both_channels_and_an_asynchronous_callback():
    provider = FullProvider()
    provider.script = [("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c")]
    seen: list[str] = []

    async def out(text: str) -> None:
        await asyncio.sleep(0)
        seen.append(f"out {text}")

    result = await (await started(provider)).exec("x", on_stdout=out, on_stderr=lambda text: seen.append(f"err {text}"))
    assert seen == ["out a", "err b", "out c"]
    assert (result.stdout, result.stderr) == (None, None)


async def test_an_error_in_a_callback_is_raised():
    provider = FullProvider()
    provider.script = [("stdout", b"a"), ("stdout", b"b")]

    def fail(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="a"):
        await (await started(provider)).exec("x", on_stdout=fail)


def chunks():
    yield b"ge"
    yield bytearray(b"ne")
    yield memoryview(b"rated")


async def asynchronous():
    for piece in (b"as", b"ync"):
        await asyncio.sleep(0)
        yield piece


@pytest.mark.parametrize(
    ("stdin", "arrives"),
    [
        (b"bytes", b"bytes"),
        (b"", b""),
        (bytearray(b"array"), b"array"),
        ("text ☕", "text ☕".encode()),
        ([b"li", b"st"], b"list"),
        (chunks, b"generated"),
        (asynchronous, b"async"),
    ],
)
async def test_stdin_in_all_its_forms(stdin: object, arrives: bytes):
    provider = FullProvider()
    provider.script = [("stdout", b"kept")]
    given = stdin() if callable(stdin) else stdin
    result = await (await started(provider)).exec("x", stdin=given)  # type: ignore[arg-type]
    assert provider.stdin == arrives
    assert result.stdout == "kept"


async def test_stdin_from_an_open_file(tmp_path: Path):
    (tmp_path / "in").write_bytes(b"line 1\nline 2\n")
    provider = FullProvider()
    sandbox = await started(provider)
    with (tmp_path / "in").open("rb") as source:
        await sandbox.exec("x", stdin=source)
    assert provider.stdin == b"line 1\nline 2\n"


@pytest.mark.parametrize("stdin", [5, ["text"], object()])
async def test_stdin_of_another_kind_is_refused(stdin: object):
    with pytest.raises(TypeError, match="stdin must"):
        await (await started(FullProvider())).exec("x", stdin=stdin)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"on_stdout": print}, {"on_stderr": print}, {"stdin": b""}])
async def test_streaming_needs_a_class_that_declares_it(arguments: dict[str, object]):
    plain = MemoryProvider()
    plain.exec_stream = AsyncMock()  # type: ignore[attr-defined]  # on the object only
    sandbox = await started(plain)
    with pytest.raises(NotImplementedError, match="'memory'"):
        await sandbox.exec("x", **arguments)  # type: ignore[arg-type]
    plain.exec_stream.assert_not_called()  # type: ignore[attr-defined]
    mock = AsyncMock()
    mock.name = "mock"
    doubled = await AsyncSandbox(mock, SandboxSpec()).start()
    with pytest.raises(NotImplementedError, match="'mock'"):
        await doubled.exec("x", **arguments)  # type: ignore[arg-type]


async def test_a_callback_has_to_be_callable():
    """It was noticed when the command had printed, and never when it did not."""
    sandbox = await started(FullProvider())
    for name in ("on_stdout", "on_stderr"):
        with pytest.raises(TypeError, match=f"{name} must be callable, not int"):
            await sandbox.exec("x", **{name: 5})  # type: ignore[arg-type]


async def test_streaming_and_service_preservation_exclude_each_other():
    provider = FullProvider()
    with pytest.raises(ValueError, match="cannot be combined"):
        await (await started(provider)).exec("x", stdin=b"", preserve_background_services=True)
    assert provider.streams == provider.services == []


async def test_cancelling_a_command_reaches_the_provider():
    provider = MemoryProvider()
    reached, _ = provider.hold("exec")
    sandbox = await started(provider)
    task = asyncio.create_task(sandbox.exec("x"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sandbox.stop()
    assert provider.calls == ["create", "exec", "close", "aclose"]


async def test_files_go_both_ways(tmp_path: Path):
    provider = MemoryProvider()
    sandbox = await started(provider)
    (tmp_path / "up").write_bytes(b"data")
    await sandbox.upload(str(tmp_path / "up"), "/there")
    await sandbox.download("/there", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b"data"
    provider.files["/log"] = b"caf\xc3\xa9 \xff\n"
    assert await read_text(sandbox, path="/log") == "café \ufffd\n"


@pytest.mark.parametrize("path", [None, b"/there", 5], ids=repr)
async def test_a_path_inside_is_text(path: Any, tmp_path: Path):
    """Their text forms named other files: None was the file "None"."""
    provider = MemoryProvider()
    sandbox = await started(provider)
    (tmp_path / "up").write_bytes(b"data")
    for work in (
        lambda: sandbox.upload(tmp_path / "up", path),
        lambda: sandbox.download(path, tmp_path / "down"),
        lambda: sandbox.upload_dir(tmp_path, path),
        lambda: sandbox.download_dir(path, tmp_path / "tree"),
    ):
        with pytest.raises(TypeError):
            await work()
    assert provider.files == {}


async def test_endpoint_checks_in_order():
    plain, full = MemoryProvider(), FullProvider()
    sandbox = AsyncSandbox(plain, SandboxSpec(ports=[80, 443]))
    for wrong in (0, 65536, True, "80", 80.0):
        with pytest.raises(ValueError, match="between 1 and 65535"):
            await sandbox.endpoint(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"was not declared .*\[80, 443\]"):
        await sandbox.endpoint(81)
    with pytest.raises(ValueError, match="was not declared"):
        await AsyncSandbox(plain).endpoint(80)
    with pytest.raises(NotImplementedError, match="'memory' does not support service endpoints"):
        await sandbox.endpoint(80)
    sandbox = AsyncSandbox(full, SandboxSpec(ports=[80]))
    with pytest.raises(RuntimeError, match="has not been started"):
        await sandbox.endpoint(80)
    await sandbox.start()
    assert await sandbox.endpoint(80) == SandboxEndpoint("http://127.0.0.1:81")
    full.endpoint = AsyncMock(return_value="http://127.0.0.1:81")  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="SandboxEndpoint"):
        await sandbox.endpoint(80)
