"""Sidecars on docker: containers beside a sandbox, in its network, that start and end with it."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nemo_gym_sandbox import AsyncSandbox, SandboxSidecarSpec, SandboxSpec, create_provider
from nemo_gym_sandbox.providers.docker import DockerCreateError

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "lab/busybox:1"
SERVICE = "lab/sandbox-test-service:1"


def docker(*args: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["docker", *args], input=stdin, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().strip()


@pytest.fixture(scope="module", autouse=True)
def service_image() -> Iterator[None]:
    """An image without a shell: one program, which serves one page."""
    busybox = shutil.which("busybox")
    assert busybox, "the tests need Debian's busybox-static"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data, mode in (
            ("httpd", Path(busybox).read_bytes(), 0o755),
            ("www/index.html", b"from the sidecar \xe2\x98\x95\n", 0o644),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    entry = 'ENTRYPOINT ["/httpd", "-f", "-v", "-p", "8099", "-h", "/www"]'
    docker("import", "--change", entry, "-", SERVICE, stdin=buffer.getvalue())
    yield
    docker("rmi", "-f", SERVICE)


def spec(**more: object) -> SandboxSpec:
    return SandboxSpec(image=IMAGE, sidecars=[SandboxSidecarSpec("web", SERVICE, env={"WHO": "side"})], **more)  # type: ignore[arg-type]


def containers(label: str) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label={label}").split()


FETCH = "i=0; until busybox wget -qO- http://127.0.0.1:8099/; do i=$((i+1)); [ $i -lt 100 ] || exit 9; busybox usleep 50000; done"


async def test_a_sidecar_shares_the_sandboxes_network_and_ends_with_it() -> None:
    async with AsyncSandbox({"docker": {}}, spec()) as sandbox:
        await sandbox.start()
        page = await sandbox.exec(FETCH, timeout_s=20)
        assert page.stdout == "from the sidecar ☕\n", page
        assert len(containers(f"nemo-gym.sidecar-of={sandbox.sandbox_id}")) == 1
        ident = sandbox.sandbox_id
    assert containers(f"nemo-gym.sidecar-of={ident}") == []


async def test_argv_runs_in_an_image_without_a_shell() -> None:
    async with AsyncSandbox({"docker": {}}, spec()) as sandbox:
        await sandbox.start()
        web = sandbox.sidecar("web")
        heard: list[str] = []
        result = await web.exec("/proc/self/exe", timeout_s=10, on_stdout=heard.append)
        assert result.error_type is None
        result = await web.exec("/no/such/program", timeout_s=10)
        assert result.return_code == 127 and "/no/such/program" in (result.stderr or ""), result
        with pytest.raises(ValueError, match="was not declared"):
            sandbox.sidecar("other")


async def test_output_of_a_sidecar_can_be_followed(tmp_path: Path) -> None:
    sidecars = [SandboxSidecarSpec("log", IMAGE, env={"WHO": "side"})]
    async with AsyncSandbox({"docker": {}}, SandboxSpec(image=IMAGE, sidecars=sidecars)) as sandbox:
        await sandbox.start()
        log = sandbox.sidecar("log")
        first = asyncio.Event()
        heard: list[str] = []

        def hear(text: str) -> None:
            heard.append(text)
            first.set()

        running = asyncio.create_task(
            log.exec("sh", "-c", 'echo "$WHO"; until [ -e /go ]; do usleep 10000; done; echo end', on_stdout=hear)
        )
        await asyncio.wait_for(first.wait(), 10)
        assert "".join(heard) == "side\n"
        await log.exec("touch", "/go")
        result = await running
        assert result.stdout == "side\nend\n" == "".join(heard)
        await log.download("/etc/passwd", tmp_path / "passwd")
        assert (tmp_path / "passwd").read_text().startswith("root:")


async def test_another_process_finds_the_sidecars() -> None:
    async with AsyncSandbox({"docker": {}}, spec()) as sandbox:
        await sandbox.start()
        description = await sandbox.serialize()
        other = await AsyncSandbox.connect(description, provider=create_provider({"docker": {}}))
        result = await other.sidecar("web").exec("/no/such/program")
        assert result.return_code == 127
        await other.disconnect()
        assert (await sandbox.exec(FETCH, timeout_s=20)).return_code == 0


async def test_a_sidecar_that_cannot_start_leaves_nothing() -> None:
    ours = f"nemo-gym.owner-pid={os.getpid()}"
    before = containers(ours)
    sandbox = AsyncSandbox(
        {"docker": {}},
        SandboxSpec(image=IMAGE, sidecars=[{"name": "gone", "image": "127.0.0.1:9/lab/none:1"}]),
    )
    with pytest.raises(DockerCreateError, match=r'sidecar "gone".*127\.0\.0\.1:9/lab/none:1'):
        await sandbox.start()
    await sandbox.stop()
    assert containers(ours) == before


async def test_pause_holds_sidecars_too() -> None:
    async with AsyncSandbox({"docker": {}}, spec()) as sandbox:
        await sandbox.start()
        await sandbox.pause()
        (side,) = containers(f"nemo-gym.sidecar-of={sandbox.sandbox_id}")
        assert docker("inspect", "-f", "{{.State.Status}}", side) == "paused"
        await sandbox.resume()
        assert docker("inspect", "-f", "{{.State.Status}}", side) == "running"
