"""What the tests of the command line share: harnesses that can be killed, and the program itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]

IMAGE = "lab/busybox:1"

HARNESS = """
import asyncio, json, sys
from nemo_gym_sandbox import AsyncSandbox, SandboxSpec

async def start(provider, image, marker):
    box = AsyncSandbox(provider, SandboxSpec(image=image))
    await box.start()
    # Until the shell's child has become the command.
    result = await box.exec(marker + " >/dev/null 2>&1 </dev/null & until grep -qx sleep /proc/$!/comm; do :; done")
    assert result.return_code == 0, result
    return box

async def main(plan):
    boxes = await asyncio.gather(*(start(*one) for one in plan["boxes"]))
    handed = [await box.serialize() for box in boxes[: plan["handed_over"]]]
    print(json.dumps({"ids": [box.sandbox_id for box in boxes], "handed": handed}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        results = await asyncio.gather(*(box.exec("echo alive") for box in boxes))
        assert all(result.stdout == "alive\\n" for result in results), results
        print("alive", flush=True)
    await asyncio.gather(*(box.stop() for box in boxes))

asyncio.run(main(json.loads(sys.argv[1])))
"""


def local(**config: Any) -> tuple[dict[str, Any], None]:
    """A sandbox of this machine."""
    return {"local": config}, None


def docker(**config: Any) -> tuple[dict[str, Any], str]:
    """A sandbox in a container."""
    return {"docker": {"create": config}}, IMAGE


@dataclass
class Harness:
    """A process that made sandboxes and waits. Each sandbox runs a command of its own that can be found by ``marker``."""

    process: subprocess.Popen[str]
    marker: str
    ids: list[str] = field(default_factory=list)
    handed: list[dict[str, Any]] = field(default_factory=list)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # the test's timeout is the deadline
        assert line, "the harness has ended"
        return line

    def await_start(self) -> None:
        said = json.loads(self._line())
        self.ids, self.handed = said["ids"], said["handed"]

    def use(self) -> None:
        """Run a command in each of its sandboxes."""
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        assert self._line() == "alive\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Let it stop its sandboxes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def processes(self) -> int:
        """How many of its sandboxes' commands live on this machine."""
        return len(self.pids())

    def pids(self) -> list[int]:
        """Their numbers."""
        want = b"\0".join(word.encode() for word in self.marker.split()) + b"\0"
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                # A shell that execs the command, or busybox, may stand before it.
                if path.read_bytes().endswith(want):
                    found.append(int(path.parent.name))
            except OSError:
                continue  # it ended meanwhile
        return found


class Machine:
    """The user whose sandboxes are looked at: a state directory and workspaces of the test's own."""

    def __init__(self, state: Path, work: Path) -> None:
        self.state = state / "nemo-gym-sandbox"
        self.work = work
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "python"),
            "XDG_STATE_HOME": str(state),
            "NO_COLOR": "1",
        }
        self.harnesses: list[Harness] = []

    def harness(self, run: str, *boxes: tuple[dict[str, Any], str | None], handed_over: int = 0) -> Harness:
        marker = f"sleep {os.getpid() * 100 + 10_000_000 + len(self.harnesses)}"
        plan = {"boxes": [(provider, image, marker) for provider, image in boxes], "handed_over": handed_over}
        process = subprocess.Popen(
            [sys.executable, "-c", HARNESS, json.dumps(plan)],
            env={**self.env, "NEMO_GYM_RUN_ID": run},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        harness = Harness(process, marker)
        self.harnesses.append(harness)
        harness.await_start()
        return harness

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the program."""
        return subprocess.run(
            [sys.executable, "-m", "nemo_gym_sandbox", *arguments],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def json(self, *arguments: str, **env: str) -> Any:
        """What the program answers with ``--json``."""
        done = self.run(*arguments, "--json", **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ls(self) -> dict[str, dict[str, Any]]:
        """The sandboxes that it lists, by id, others' aside."""
        mine = {one for harness in self.harnesses for one in harness.ids}
        return {one["sandbox_id"]: one for one in self.json("ls") if one["sandbox_id"] in mine}

    def leftovers(self, ids: list[str]) -> list[str]:
        """Folders and containers of sandboxes, found without the program."""
        found = [str(place / one) for one in ids for place in (self.state / "s", self.work) if (place / one).exists()]
        names = subprocess.run(
            ["docker", "ps", "--all", "--format", "{{.Names}}"], check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()
        return found + [one for one in ids if one in names]

    def ledgers(self) -> list[str]:
        return sorted(path.name for path in (self.state / "runs").glob("*"))

    def _kill_agents(self) -> None:
        """Of a test that failed half way, perhaps because the program is broken: what it left would live on for ever."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                # Each of its children ends with the first process of its namespace; unisolated, it is killed by its marker.
                if bytes(self.work.parent) in path.read_bytes() and int(path.parent.name) != os.getpid():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                continue  # it ended meanwhile
        for harness in self.harnesses:
            for process in harness.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        for harness in self.harnesses:
            if harness.process.poll() is None:
                harness.kill()
            for pipe in (harness.process.stdin, harness.process.stdout):
                if pipe is not None:
                    pipe.close()
        self._kill_agents()
        for one in self.leftovers([one for harness in self.harnesses for one in harness.ids]):
            subprocess.run(["docker", "rm", "--force", one], check=False, capture_output=True, timeout=60)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    state, work = tmp_path / "state", tmp_path / "work"
    state.mkdir()
    work.mkdir()
    machine = Machine(state, work)
    yield machine
    machine.close()


@pytest.fixture
def box(machine: Machine) -> Callable[..., tuple[dict[str, Any], None]]:
    """Describes a local sandbox whose workspace is the test's."""

    def describe(**config: Any) -> tuple[dict[str, Any], None]:
        return local(workspace_root=str(machine.work), **config)

    return describe
