"""What runs the public server leaves nothing behind, however those end who use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from public_server import ROOT, PublicServer

HOLDER = """
import subprocess, sys, time
harness = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE)
time.sleep(600)
"""


def test_nothing_is_left_when_its_user_is_killed() -> None:
    harness = ROOT / "tests" / "testenv" / "opensandbox" / "serve.py"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, harness], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    server = PublicServer(**json.loads(holder.stdout.readline()))
    make(server)
    assert len(server.containers()) == 1
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # The harness has the pipe too, and lets go of it as the last thing that it does.
    assert holder.stdout.read() == ""
    holder.stdout.close()
    assert server.containers() == []
    assert not Path(server.log).exists()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"{server.url}/health", timeout=20)


def test_nothing_is_reachable_from_elsewhere(server: PublicServer) -> None:
    """Neither the server nor what it publishes listens on anything but this machine's own address."""
    before = set(server.containers())
    box = make(server)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{server.url}/v1/sandboxes", timeout=20)
    (container,) = set(server.containers()) - before
    shown = subprocess.run(
        ["docker", "inspect", "--format", "{{json .NetworkSettings.Ports}} {{.HostConfig.NetworkMode}}", container],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ports, _, mode = shown.strip().rpartition(" ")
    assert mode == "bridge"
    bound = [each for binding in json.loads(ports).values() for each in binding or []]
    assert {each["HostIp"] for each in bound} == {"127.0.0.1"}
    for number in [server.url.rpartition(":")[2], *(each["HostPort"] for each in bound)]:
        assert {a.partition(":")[0] for a in listening() if a.endswith(f":{int(number):04X}")} == {"0100007F"}
    call(server, "DELETE", f"/v1/sandboxes/{box}")
    assert set(server.containers()) == before


def make(server: PublicServer) -> str:
    """A sandbox, without any client of ours; its id."""
    body = {"image": {"uri": server.image}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {}}
    return str(json.loads(call(server, "POST", "/v1/sandboxes", body))["id"])


def call(server: PublicServer, method: str, path: str, body: object = None) -> bytes:
    headers = {"OPEN-SANDBOX-API-KEY": server.api_key, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def listening() -> set[str]:
    """Where something listens, as the kernel writes it."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {row.split()[1] for row in rows if row.split()[3] == "0A"}
