"""``ls`` and ``reap`` against a server: they see and end what belongs to one run, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxConnectionConfig, OpenSandboxProvider

if TYPE_CHECKING:
    from conftest import Server
    from nemo_gym_sandbox.providers.base import SandboxHandle


def cli(server: OpenSandboxConnectionConfig, *arguments: str, key: str | None = None) -> tuple[int, Any, str]:
    env = {**os.environ, "OPEN_SANDBOX_API_KEY": key or str(server.api_key), "OPEN_SANDBOX_DOMAIN": ""}
    command = [sys.executable, "-m", "nemo_gym_sandbox", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def make(server: OpenSandboxConnectionConfig, run: str, user: str, count: int) -> list[str]:
    async def whole() -> list[SandboxHandle]:
        provider = OpenSandboxProvider(
            connection=server, attribution={"run": run, "user": user}, probe={"command": None}
        )
        handles = [await provider.create(SandboxSpec(image="i")) for _ in range(count)]
        await provider.aclose()
        return handles

    return [handle.sandbox_id for handle in asyncio.run(whole())]


def test_a_run_is_listed_and_ended(server: OpenSandboxConnectionConfig) -> None:
    mine = make(server, "run: 7", "ann", 3)
    hers = make(server, "run: 7", "bea", 1)
    other = make(server, "other", "ann", 1)
    at = ("--provider", "opensandbox", "--domain", str(server.domain), "--json")

    def ids(*selection: str) -> set[str]:
        code, rows, error = cli(server, "ls", *at, *selection)
        assert (code, error) == (0, "")
        return {row["sandbox_id"] for row in rows}

    assert ids() == {*mine, *hers, *other}
    assert ids("--run-id", "run: 7") == {*mine, *hers}
    assert ids("--run-id", "run_7", "--user", "ann") == set(mine)
    assert ids("--user", "ann") == {*mine, *other}
    row = cli(server, "ls", *at, "--run-id", "run_7", "--user", "bea")[1][0]
    assert (row["run"], row["user"], row["status"], row["kept"]) == ("run_7", "bea", "running", "")
    assert all(row["kept"] for row in cli(server, "ls", *at)[1]), "nobody has said that these runs are over"

    code, told, error = cli(server, "reap", *at, "--run-id", "run: 7", "--user", "ann", "--dry-run")
    assert (code, error) == (0, "")
    assert {row["sandbox_id"] for row in told["reaped"]} == set(mine)
    assert ids("--run-id", "run: 7") == {*mine, *hers}
    code, told, error = cli(server, "reap", *at, "--run-id", "run: 7", "--user", "ann")
    assert (code, error) == (0, "")
    assert {row["sandbox_id"] for row in told["reaped"]} == set(mine)
    assert (told["failed"], told["kept"]) == ([], [])
    assert ids() == {*hers, *other}
    code, told, error = cli(server, "reap", *at, "--run-id", "run: 7")
    assert (code, {row["sandbox_id"] for row in told["reaped"]}) == (0, set(hers))


def test_snapshots_go_with_their_sandboxes(standin: Server) -> None:
    server = standin.connection

    def snapshot(sandbox_id: str) -> str:
        request = urllib.request.Request(
            f"{standin.url}/v1/sandboxes/{sandbox_id}/snapshots", b"{}", {"OPEN-SANDBOX-API-KEY": standin.key}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["id"]

    (source,) = make(server, "snap", "ann", 1)
    (other,) = make(server, "kept", "ann", 1)
    used, kept = snapshot(source), snapshot(other)

    async def restore() -> str:
        provider = OpenSandboxProvider(
            connection=server, attribution={"run": "snap", "user": "ann"}, probe={"command": None}
        )
        spec = SandboxSpec(provider_options={"snapshot_id": used})
        handle = await provider.create(spec)
        await provider.aclose()
        return handle.sandbox_id

    restored = asyncio.run(restore())
    at = ("--provider", "opensandbox", "--domain", standin.url, "--json")
    rows = {row["sandbox_id"]: row for row in cli(server, "ls", *at, "--run-id", "snap")[1]}
    assert set(rows) == {source, restored, f"snapshot/{used}"}
    assert rows[f"snapshot/{used}"]["leftover"]
    # The snapshot can't be deleted before the sandbox that runs from it.
    code, told, error = cli(server, "reap", *at, "--run-id", "snap")
    assert (code, error) == (0, "")
    assert ({row["sandbox_id"] for row in told["reaped"]}, told["failed"]) == (set(rows), [])
    left = {row["sandbox_id"] for row in cli(server, "ls", *at)[1]}
    assert {other, f"snapshot/{kept}"} <= left
    assert not left & set(rows)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("reap", "--provider", "opensandbox"), 2, "needs --run-id"),
        (("reap", "--provider", "opensandbox", "--run-id", " "), 2, "--run-id must not be blank"),
        (("ls", "--provider", "docker", "--user", "ann"), 2, "are for --provider opensandbox"),
        (("ls", "--provider", "opensandbox", "--domain", "ftp://x", "--json"), 125, "http or https"),
    ],
)
def test_arguments_that_make_no_sense(
    server: OpenSandboxConnectionConfig, arguments: tuple[str, ...], code: int, text: str
) -> None:
    got, printed, error = cli(server, *arguments)
    assert (got, printed or None) == (code, None)
    assert text in error


def test_a_wrong_key_is_said_but_not_shown(server: OpenSandboxConnectionConfig) -> None:
    at = ("--provider", "opensandbox", "--domain", str(server.domain), "--json")
    for verb in (("ls",), ("reap", "--run-id", "x")):
        code, _, error = cli(server, *verb, *at, key="the-wrong-key")
        assert code == 125
        assert "INVALID_API_KEY" in error
        assert "the-wrong-key" not in error
