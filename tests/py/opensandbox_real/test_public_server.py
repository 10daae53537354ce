"""Our provider and the official SDK on one public server: what the one does, the other sees."""

from __future__ import annotations

import asyncio
import hashlib
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from public_server import PublicServer, Sdk, SdkError

from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.providers.base import SandboxPtyError, SandboxPtySpec, SandboxSpec, SandboxStatus
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxCreateError, OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from nemo_gym_sandbox.providers.base import SandboxHandle

    Run = Callable[[Coroutine[Any, Any, None]], None]

COMMANDS = [
    "true",
    "echo one",
    "printf 'no end'",
    "printf 'a\\nb\\n'; echo err >&2",
    "exit 3",
    "echo before; exit 7",
    "kill -9 $$",
    "no-such-command-zz",
    "printf 'cr\\rlf\\r\\nend\\n'",
    "printf '☕ ümlaut\\n'",
    "seq 1 20000",
    "echo $0 | wc -l; pwd; id -u",
    "sleep 5 & echo started",
]


@asynccontextmanager
async def ours(server: PublicServer, proxied: bool, **blocks: Any) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(connection=server.connection(proxied), create={"connect_poll_s": 0.1}, **blocks)
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def made(provider: OpenSandboxProvider, server: PublicServer, **spec: Any) -> AsyncIterator[SandboxHandle]:
    handle = await provider.create(SandboxSpec(**{"image": server.image, "ttl_s": 600, **spec}))
    try:
        yield handle
    finally:
        await provider.close(handle)


async def aside(sdk: Sdk, op: str, **arguments: Any) -> Any:
    """One operation of the SDK, while our loop goes on."""
    return await asyncio.to_thread(lambda: sdk(op, **arguments))


def test_the_sdk_takes_up_what_we_made(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        async with ours(server, proxied) as provider:
            spec = {
                "env": {"FROM": 'a spec\'s "env"'},
                "metadata": {"suite": "real one"},
                "files": {"/tmp/f": "of the spec"},
            }
            async with made(provider, server, **spec) as handle:
                box = await aside(sdk, "connect", box=handle.sandbox_id)
                info = await aside(sdk, "info", box=box)
                assert info["state"] == "Running"
                assert info["image"] == server.image
                assert info["metadata"]["suite"] == "real_one"
                assert info["expires_at"] == pytest.approx(time.time() + 600, abs=60)
                assert box in await aside(sdk, "list", metadata={"suite": "real_one"})
                said = await aside(sdk, "run", box=box, command='echo "$FROM"; cat /tmp/f')
                assert said["stdout"] == ['a spec\'s "env"', "of the spec"]
                assert (await aside(sdk, "patch_metadata", box=box, patch={"suite": None, "more": "1"})).get(
                    "more"
                ) == "1"
                await aside(sdk, "kill", box=box)
                assert await provider.status(handle) is SandboxStatus.STOPPED
                late = await provider.exec(handle, "true")
                assert (late.error_type, late.return_code) == ("sandbox", 125)

    run(body())


def test_we_take_up_what_the_sdk_made(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        box = await aside(sdk, "create", image=server.image, env={"FROM": "the SDK"}, metadata={"by": "sdk"})
        async with ours(server, proxied) as provider:
            handle = await provider.connect({"sandbox_id": box})
            assert (await provider.exec(handle, 'echo "$FROM"')).stdout == "the SDK"
            renewed = await aside(sdk, "renew", box=box, timeout_s=1800)
            assert renewed == pytest.approx(time.time() + 1800, abs=60)
            await aside(sdk, "pause", box=box)
            assert await provider.status(handle) is SandboxStatus.PAUSED
            await provider.resume(handle)
            assert (await aside(sdk, "run", box=box, command="echo back"))["stdout"] == ["back"]
            await provider.pause(handle)
            assert (await aside(sdk, "info", box=box))["state"] == "Paused"
            await aside(sdk, "resume", box=box)
            assert (await provider.exec(handle, "echo back too")).stdout == "back too"
            await provider.close(handle)
            assert await provider.status(handle) is SandboxStatus.STOPPED
        with pytest.raises(SdkError, match="NOT_FOUND"):
            await aside(sdk, "info", box=box)

    run(body())


def test_commands_end_and_print_alike(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        async with ours(server, proxied) as provider, made(provider, server) as handle:
            box = await aside(sdk, "connect", box=handle.sandbox_id)
            for command in COMMANDS:
                theirs = await aside(sdk, "run", box=box, command=command)
                mine = await provider.exec(handle, command)
                # The SDK passes on how the daemon tells an empty line; and no number for death by a signal.
                lines = "\n".join(line.removesuffix("\n") for line in theirs["stdout"])
                assert (mine.stdout or "") == lines, command
                code = theirs["exit_code"]
                assert mine.return_code == (137 if code == -1 else code), command
                said = [line.removesuffix("\n") for line in theirs["stderr"]]
                if theirs["error"]:
                    said.append(": ".join(theirs["error"]))
                assert (mine.stderr or "") == "\n".join(said), command
            options = {"envs": {"A": "b c"}, "uid": 65534, "working_directory": "/tmp"}
            theirs = await aside(sdk, "run", box=box, command='echo "$A"; id -u; pwd', **options)
            mine = await provider.exec(handle, 'echo "$A"; id -u; pwd', env={"A": "b c"}, user=65534, cwd="/tmp")
            assert theirs["stdout"] == ["b c", "65534", "/tmp"] == (mine.stdout or "").split("\n")
            began = time.monotonic()
            theirs = await aside(sdk, "run", box=box, command="echo early; sleep 60", timeout_s=1)
            mine = await provider.exec(handle, "echo early; sleep 60", timeout_s=1)
            assert time.monotonic() - began < 20
            assert theirs["stdout"] == ["early"] == [mine.stdout]
            assert (theirs["exit_code"], mine.error_type) == (-1, "timeout")

    run(body())


def test_the_sdk_follows_commands_and_sessions(server: PublicServer, sdk: Sdk) -> None:
    box = sdk("create", image=server.image)
    command = sdk("background", box=box, command="echo out; echo err >&2; exit 4")
    until = time.monotonic() + 20
    while (status := sdk("command_status", box=box, command_id=command))["running"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert status["exit_code"] == 4
    assert sdk("command_logs", box=box, command_id=command) == "out\nerr\n"
    command = sdk("background", box=box, command="sleep 1000")
    sdk("interrupt", box=box, command_id=command)
    while (status := sdk("command_status", box=box, command_id=command))["running"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert status["exit_code"] != 0
    assert sdk("in_session", box=box, commands=["cd /tmp; export A=kept", "pwd; echo $A"])[1] == ["/tmp", "kept"]
    assert sdk("metrics", box=box)["cpu_count"] > 0
    sdk("kill", box=box)


def test_files_cross_over(server: PublicServer, sdk: Sdk, proxied: bool, run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with ours(server, proxied) as provider, made(provider, server) as handle:
            box = await aside(sdk, "connect", box=handle.sandbox_id)
            for size in (0, 1, 65537, 5 << 20):
                content = (hashlib.sha256(b"%d" % size).digest() * (size // 32 + 1))[:size]
                local = tmp_path / "local"
                local.write_bytes(content)
                local.chmod(0o640)
                await provider.upload_file(handle, local, f"/tmp/ours-{size}")
                assert sdk.read(box, f"/tmp/ours-{size}") == content
                assert sdk("file_info", box=box, path=f"/tmp/ours-{size}")["size"] == size
                sdk.write(box, f"/tmp/deep/er/theirs-{size}", content, mode=600)
                await provider.download_file(handle, f"/tmp/deep/er/theirs-{size}", tmp_path / "back")
                assert (tmp_path / "back").read_bytes() == content
            told = await provider.exec(handle, "stat -c '%a %u' /tmp/ours-1 /tmp/deep/er/theirs-1")
            assert told.stdout == "640 0\n600 0"
            with pytest.raises(SdkError):
                sdk.read(box, "/tmp/nope")
            with pytest.raises(FileNotFoundError):
                await provider.download_file(handle, "/tmp/nope", tmp_path / "nope")

    run(body())


def test_terminals(server: PublicServer, proxied: bool, run: Run) -> None:
    async def body() -> None:
        config = {"opensandbox": {"connection": server.connection(proxied)}}
        async with AsyncSandbox(config, SandboxSpec(image=server.image)) as sandbox:
            await sandbox.start()
            for _ in range(10):
                session = await sandbox.pty.create("echo out; exit 7", pty=False)
                assert b"".join([chunk async for chunk in session]) == b"out\n"
                assert await session.wait_exit() == 7
                await session.close()
            shell = await sandbox.pty.create(rows=40, cols=120)

            async def typed(command: str) -> str:
                return (await sandbox.pty.exec(command, session=shell, timeout_s=20)).stdout or ""

            assert (await typed("stty size </dev/tty")).split() == ["40", "120"]
            await shell.resize(33, 77)
            assert (await typed("stty size </dev/tty")).split() == ["33", "77"]
            await shell.write(b"sleep 1000 || echo inter''rupted\n")
            until = time.monotonic() + 20
            while (await sandbox.exec("ps | grep -q '[s]leep 1000'")).return_code != 0:
                assert time.monotonic() < until
            await shell.write(b"\x03")
            assert "still here" in await typed("echo still here")
            assert time.monotonic() < until
            other = await sandbox.pty.attach(shell.session_id, takeover=True)
            await other.write(b"echo $((6*7)); exit 5\n")
            assert b"42" in b"".join([chunk async for chunk in other])
            assert await other.wait_exit() == 5
            await other.close()
            await shell.close()

    run(body())


def test_ports_are_reached(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        async with ours(server, proxied) as provider, made(provider, server) as handle:
            box = await aside(sdk, "connect", box=handle.sandbox_id)
            await provider.exec(handle, "mkdir /tmp/www; echo served >/tmp/www/index.html")
            for port in (8080, 8081):
                started = await provider.exec(handle, f"httpd -p {port} -h /tmp/www")
                assert started.return_code == 0, started
                found = await provider.endpoint(handle, port)
                assert found.endpoint == "http://" + await aside(sdk, "endpoint", box=box, port=port)
                request = urllib.request.Request(f"{found.endpoint}/index.html", headers=found.headers or {})
                assert (
                    await asyncio.to_thread(lambda r=request: urllib.request.urlopen(r, timeout=20).read())
                    == b"served\n"
                )

    run(body())


def test_volumes_and_snapshots(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        def volume(path: str) -> dict[str, Any]:
            return {"volumes": [{"name": "v", "host": {"path": path}, "mountPath": "/mnt/v", "readOnly": False}]}

        async with ours(server, proxied) as provider:
            async with made(provider, server, provider_options=volume(server.volumes)) as handle:
                assert (await provider.exec(handle, "echo shared >/mnt/v/f")).return_code == 0
                with open(f"{server.volumes}/f") as file:  # noqa: ASYNC230 - a line
                    assert file.read() == "shared\n"
                await provider.exec(handle, "echo kept >/root/note")
                await aside(sdk, "connect", box=handle.sandbox_id)
                snapshot = await aside(sdk, "snapshot", box=handle.sandbox_id)
            restored = {"image": None, "provider_options": {"snapshot_id": snapshot}}
            async with made(provider, server, **restored) as handle:
                assert (await provider.exec(handle, "cat /root/note")).stdout == "kept"
            await aside(sdk, "delete_snapshot", snapshot=snapshot)
            with pytest.raises(OpenSandboxCreateError, match="HOST_PATH_NOT_ALLOWED"):
                await provider.create(SandboxSpec(image=server.image, provider_options=volume("/etc")))
            with pytest.raises(OpenSandboxCreateError):
                await provider.create(
                    SandboxSpec(image=server.image, provider_options={"network_policy": {"egress": []}})
                )

    run(body())


def test_its_time_is_prolonged_while_we_hold_it(server: PublicServer, sdk: Sdk, proxied: bool, run: Run) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(connection=server.connection(proxied), create={"renew_interval_s": 0.5})
        handle = await provider.create(SandboxSpec(image=server.image, ttl_s=90))
        box = await aside(sdk, "connect", box=handle.sandbox_id)
        first = (await aside(sdk, "info", box=box))["expires_at"]
        until = time.monotonic() + 20
        while (await aside(sdk, "info", box=box))["expires_at"] <= first:
            assert time.monotonic() < until
        await provider.close(handle)
        await provider.aclose()

    run(body())


def test_an_image_without_bash(server: PublicServer, proxied: bool, run: Run) -> None:
    async def body() -> None:
        async with ours(server, proxied) as provider, made(provider, server, image=server.small_image) as handle:
            assert (await provider.exec(handle, "echo $((6 * 7)); exit 3")).return_code == 3
            with pytest.raises(SandboxPtyError, match="bash"):
                await provider.create_pty(handle, SandboxPtySpec(command="echo out", pty=False))

    run(body())


def test_a_dead_daemon_is_no_success(server: PublicServer, proxied: bool, run: Run) -> None:
    async def body() -> None:
        quick = {"retries": 1, "retry_delay_s": 0.05}
        async with ours(server, proxied, operations=quick) as provider, made(provider, server) as handle:
            cut = await provider.exec(handle, "echo before; kill -9 $PPID; sleep 5")
            assert (cut.error_type, cut.return_code) == ("sandbox", 125), cut
            if proxied:
                after = await provider.exec(handle, "true")
                assert (after.error_type, after.return_code) == ("sandbox", 125), after
                assert "backend unreachable" in (after.stderr or "")

    run(body())


def test_a_command_that_takes_all_memory_is_told_as_one(server: PublicServer, proxied: bool, run: Run) -> None:
    async def body() -> None:
        limits = {"resources": {"memory_mib": 96}}
        async with ours(server, proxied) as provider, made(provider, server, **limits) as handle:
            assert (await provider.exec(handle, "echo fits")).stdout == "fits"
            killed = await provider.exec(handle, "exec tail -c 400m /dev/zero")
            assert (killed.return_code, killed.error_type) == (137, "sandbox"), killed
            assert "out of memory" in (killed.stderr or "")
            assert (await provider.exec(handle, "echo again")).stdout == "again"

    run(body())


def test_a_wrong_key_is_told_as_one(server: PublicServer) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(connection={"domain": server.url, "api_key": "wrong"})
        with pytest.raises(OpenSandboxCreateError, match="INVALID_API_KEY"):
            await provider.create(SandboxSpec(image=server.image))
        await provider.aclose()

    asyncio.run(body())
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{server.url}/v1/sandboxes", timeout=20)
