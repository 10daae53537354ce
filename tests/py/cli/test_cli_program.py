"""The command line as a program: exit codes, streams, and what ``doctor`` tells."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nemo_gym_sandbox._version import __version__

if TYPE_CHECKING:
    from .conftest import Machine


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-verb",),
        ("ls", "--provider", "no-such-provider"),
        ("reap", "--older-than", "soon"),
        ("reap", "--older-than", "-1"),
        ("reap", "--no-such-flag"),
        ("doctor", "too", "much"),
    ],
)
def test_wrong_usage_is_2(machine: Machine, arguments: tuple[str, ...]) -> None:
    done = machine.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "usage: nemo-gym-sandbox" in done.stderr


def test_help_and_version_need_no_library(machine: Machine) -> None:
    for arguments in (["--help"], ["--version"], ["ls", "--help"], ["reap", "--help"], ["doctor", "--help"]):
        code = (
            "import runpy, sys\n"
            f"sys.argv = ['nemo-gym-sandbox', *{arguments!r}]\n"
            "try:\n"
            "    runpy.run_module('nemo_gym_sandbox', run_name='__main__')\n"
            "finally:\n"
            "    assert 'ctypes' not in sys.modules, 'the library is loaded'\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=machine.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    assert machine.run("--version").stdout == f"nemo-gym-sandbox {__version__}\n"


def test_an_engine_that_can_not_be_reached_is_a_failure(machine: Machine) -> None:
    for arguments in (("ls",), ("reap",), ("ls", "--provider", "docker"), ("reap", "--json")):
        done = machine.run(*arguments, DOCKER_HOST="unix:///nowhere/docker.sock")
        assert done.returncode == 125, arguments
        assert "unix:///nowhere/docker.sock" in done.stderr
        assert "Traceback" not in done.stderr
    assert machine.run("ls", "--provider", "local", DOCKER_HOST="unix:///nowhere/docker.sock").returncode == 0


def test_a_machine_without_an_engine_is_none_unless_asked_for(machine: Machine) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/run", sys.executable, "-m", "nemo_gym_sandbox", *arguments],
            env=machine.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    for verb in ("ls", "reap"):
        done = run(verb)
        assert done.returncode == 0, done.stderr
        assert "note: docker list: there is no Docker engine" in done.stderr
        assert run(verb, "--provider", "docker").returncode == 125


def test_a_reader_that_leaves_early_is_no_crash(machine: Machine) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "nemo_gym_sandbox", "doctor"],
        env=machine.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert "Traceback" not in program.stderr.read()


def test_doctor_tells_what_won_and_why(machine: Machine) -> None:
    def facts(**env: str) -> dict[tuple[str, str], dict[str, str]]:
        return {(fact["of"], fact["name"]): fact for fact in machine.json("doctor", **env)}

    found = facts(DOCKER_HOST="", NEMO_GYM_SANDBOX_LOCAL_ISOLATION="", NEMO_GYM_RUN_ID="")
    assert found["package", "version"]["value"] == __version__
    assert found["docker", "engine's address"]["origin"] != "DOCKER_HOST"
    assert "API" in found["docker", "engine's version"]["value"]
    assert found["local", "isolation"]["origin"] == "isolation=auto"
    assert found["local", "state directory"]["value"] == str(machine.state)

    found = facts(
        DOCKER_HOST="unix:///nowhere/docker.sock", NEMO_GYM_SANDBOX_LOCAL_ISOLATION="none", NEMO_GYM_RUN_ID="mine"
    )
    assert found["docker", "engine's address"]["value"] == "unix:///nowhere/docker.sock"
    assert found["docker", "engine's address"]["origin"] == "DOCKER_HOST"
    assert "unix:///nowhere/docker.sock" in found["docker", "engine's version"]["problem"]
    assert found["local", "isolation"]["origin"] == "NEMO_GYM_SANDBOX_LOCAL_ISOLATION=none"
    assert "all rights" in found["local", "isolation"]["value"]
    assert found["package", "run"] == {
        "of": "package",
        "name": "run",
        "value": "mine",
        "origin": "NEMO_GYM_RUN_ID",
        "problem": "",
    }

    table = machine.run("doctor", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert table.returncode == 0
    assert "PROBLEM" in table.stdout
    broken = {
        fact["of"]: fact
        for fact in machine.json("doctor", NEMO_GYM_SANDBOX_LOCAL_ISOLATION="perhaps")
        if fact["problem"]
    }
    assert "perhaps" in broken["local"]["problem"]
