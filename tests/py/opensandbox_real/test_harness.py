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
    body = {"image": {"uri": server.image}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {}}
    request = urllib.request.Request(
        f"{server.url}/v1/sandboxes",
        json.dumps(body).encode(),
        {"OPEN-SANDBOX-API-KEY": server.api_key, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202
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


def test_nothing_is_reachable_from_elsewhere() -> None:
    """Neither the server nor what it publishes listens on anything but this machine's own address."""
    harness = [sys.executable, str(ROOT / "tests" / "testenv" / "opensandbox" / "serve.py")]
    with subprocess.Popen(harness, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        server = PublicServer(**json.loads(running.stdout.readline()))
        body = {"image": {"uri": server.image}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {}}
        headers = {"OPEN-SANDBOX-API-KEY": server.api_key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/v1/sandboxes", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 202
        del headers["OPEN-SANDBOX-API-KEY"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/sandboxes", None, headers), timeout=20)
        (container,) = server.containers()
        shown = subprocess.run(
            ["docker", "inspect", "--format", "{{json .NetworkSettings.Ports}} {{.HostConfig.NetworkMode}}", container],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        ports, _, mode = shown.strip().rpartition(" ")
        assert mode == "bridge"
        bound = {each["HostIp"] for binding in json.loads(ports).values() for each in binding or []}
        assert bound == {"127.0.0.1"}
        port = server.url.rpartition(":")[2]
        published = [each["HostPort"] for binding in json.loads(ports).values() for each in binding or []]
        for number in [port, *published]:
            assert {a.partition(":")[0] for a in listening() if a.endswith(f":{int(number):04X}")} == {"0100007F"}
        running.stdin.close()
        running.wait(60)
    assert server.containers() == []


def listening() -> set[str]:
    """Where something listens, as the kernel writes it."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {row.split()[1] for row in rows if row.split()[3] == "0A"}
