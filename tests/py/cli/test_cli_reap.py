"""Nothing leaks when a harness is killed: ``reap`` ends what it left, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .conftest import docker

if TYPE_CHECKING:
    from .conftest import Machine

Box = "Callable[..., tuple[dict[str, Any], None]]"


@pytest.mark.parametrize("orphan_timeout_s", [0, 3600])
def test_a_killed_harness_leaves_nothing_after_reap(machine: Machine, box: Box, orphan_timeout_s: int) -> None:
    killed = machine.harness(
        "killed",
        *[box(orphan_timeout_s=orphan_timeout_s, isolation="bwrap" if n % 2 else "none") for n in range(20)],
        *[docker(orphan_timeout_s=orphan_timeout_s) for _ in range(5)],
    )
    living = machine.harness("living", *[box(orphan_timeout_s=orphan_timeout_s)] * 3, docker())
    assert killed.processes() == 25
    assert len(machine.ledgers()) == 2

    assert machine.json("reap")["reaped"] == [], "their harness lives"
    killed.kill()
    found = machine.ls()
    assert {one["owner"] for one in found.values() if one["run"] == "killed"} == {"dead"}
    assert {one for one in found if not found[one]["kept"]} == set(killed.ids)
    assert killed.processes() == 25

    # Two at once, as when two people notice.
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "nemo_gym_sandbox", "reap"],
            env=machine.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for reaper in both:
        out, err = reaper.communicate(timeout=100)
        assert (reaper.returncode, err) == (0, ""), out + err
        assert "failed" not in out

    assert machine.leftovers(killed.ids) == []
    assert killed.processes() == 0
    assert set(machine.ls()) == set(living.ids)
    assert [name.split("-")[0] for name in machine.ledgers()] == ["living"]
    living.use()
    assert living.processes() == 4
    living.end()
    assert machine.leftovers(living.ids) == []
    assert machine.ledgers() == []


def test_what_was_handed_over_is_kept_until_asked_for(machine: Machine, box: Box) -> None:
    killed = machine.harness("killed", *[box(orphan_timeout_s=0)] * 3, handed_over=2)
    killed.kill()
    outcome = machine.json("reap", "--run-id", "killed")
    assert [one["sandbox_id"] for one in outcome["reaped"]] == killed.ids[2:]
    assert {one["sandbox_id"] for one in outcome["kept"]} == set(killed.ids[:2])
    assert all("handed over" in one["kept"] for one in outcome["kept"])
    assert [name.split("-")[0] for name in machine.ledgers()] == ["killed"]

    # Somebody takes one up, and is killed as well; the hand-over holds on.
    script = (
        "import asyncio, json, sys\n"
        "from nemo_gym_sandbox import AsyncSandbox\n"
        "async def main():\n"
        "    box = await AsyncSandbox.connect(json.loads(sys.argv[1]), provider={'local': {}})\n"
        "    print((await box.exec('echo taken')).stdout, end='', flush=True)\n"
        "    sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    import json

    with subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(killed.handed[0])],
        env=machine.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "taken\n"
        assert f"process {user.pid} " in machine.ls()[killed.ids[0]]["kept"]
        assert "handed over" in machine.ls()[killed.ids[1]]["kept"]
        user.kill()
    assert "handed over" in machine.ls()[killed.ids[0]]["kept"]

    assert {one["sandbox_id"] for one in machine.json("reap", "--all", "--run-id", "killed")["reaped"]} == set(
        killed.ids[:2]
    )
    assert machine.leftovers(killed.ids) == []
    assert killed.processes() == 0
    assert machine.ledgers() == []


def test_the_flags_choose(machine: Machine, box: Box) -> None:
    one = machine.harness("one", *[box(orphan_timeout_s=0)] * 2)
    two = machine.harness("two", box(orphan_timeout_s=0))
    living = machine.harness("living", box())
    one.kill()
    two.kill()

    def reap(*arguments: str) -> set[str]:
        return {found["sandbox_id"] for found in machine.json("reap", *arguments)["reaped"]}

    assert reap("--older-than", "3600") == set()
    assert reap("--run-id", "three") == set()
    assert reap("--provider", "docker") == set()
    assert reap("--dry-run") == {*one.ids, *two.ids}
    assert set(machine.ls()) == {*one.ids, *two.ids, *living.ids}
    assert reap("--run-id", "one", "--older-than", "0") == set(one.ids)
    assert reap("--run-id", "living") == set(), "its owner lives"
    assert reap("--provider", "local") == set(two.ids)
    assert reap() == set()
    living.use()
    assert reap("--run-id", "living", "--all", "--dry-run") == set(living.ids)
    assert reap("--run-id", "living", "--all") == set(living.ids)
    assert machine.leftovers(living.ids) == []


def test_people_read_a_table(machine: Machine, box: Box) -> None:
    killed = machine.harness("the-run", *[box(orphan_timeout_s=0)] * 2)
    shown = machine.run("ls", "--provider", "local")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["SANDBOX", "PROVIDER", "STATUS", "AGE", "RUN", "OWNER", "NOTE"]
    assert {line.split()[0] for line in lines[1:]} == set(killed.ids)
    assert all("local     running" in line and "the-run" in line and "its owner lives" in line for line in lines[1:])
    killed.kill()
    assert "can be reaped" in machine.run("ls", "--provider", "local").stdout
    would = machine.run("reap", "--provider", "local", "--dry-run")
    assert would.stdout.count("would be reaped") == 2
    done = machine.run("reap", "--provider", "local")
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == set(killed.ids)
    nothing = machine.run("reap", "--provider", "local")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing to reap" in nothing.stderr
