"""Runs real commands in a local sandbox and checks what it is promised. No Docker, no image, a few seconds.

./build.sh quickstart            in a clone
python examples/quickstart.py    with the wheel installed
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nemo_gym_sandbox import AsyncSandbox, SandboxSpec

MARK = f"quickstart-{os.getpid()}"


def check(promise: str, kept: bool, detail: object = "") -> None:
    print(f"  {'ok  ' if kept else 'FAIL'} {promise}")
    if not kept:
        sys.exit(f"not as promised: {promise}: {detail!r}")


def processes_marked(mark: str) -> list[int]:
    """Pids of living processes on this machine whose command line contains mark, this one left out."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in (entry / "cmdline").read_bytes() and state != "Z":
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


async def processes(enough: Callable[[int], bool], seconds: float) -> list[int]:
    """The marked processes as soon as their number is enough, or as they are when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = processes_marked(MARK)
        if enough(len(found)) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.02)


async def main() -> None:
    start = time.perf_counter()
    async with AsyncSandbox({"local": {}}, SandboxSpec(env={"GREETING": "hello"})) as sandbox:
        await sandbox.start()
        print(f"sandbox up after {1000 * (time.perf_counter() - start):.0f} ms")

        print("a command and its result")
        result = await sandbox.exec('echo "$GREETING from $(uname -s)"; echo careful >&2; exit 3')
        check("stdout", result.stdout == "hello from Linux\n", result)
        check("stderr", result.stderr == "careful\n", result)
        check("the command's own exit code", result.return_code == 3 and result.error_type is None, result)

        print("output while the command runs")
        arrivals: list[tuple[float, str]] = []
        start = time.perf_counter()
        result = await sandbox.exec(
            "for i in 1 2 3; do echo line $i; sleep 0.3; done",
            on_stdout=lambda text: arrivals.append((time.perf_counter() - start, text)),
        )
        took = time.perf_counter() - start
        for at, text in arrivals:
            print(f"       {at:5.2f} s  {text.rstrip()}")
        check("every line arrived", "".join(text for _, text in arrivals) == "line 1\nline 2\nline 3\n", arrivals)
        check("the first one well before the end", arrivals[0][0] < took - 0.5, (arrivals, took))

        print("input")
        result = await sandbox.exec("tr a-z A-Z", stdin=b"shout")
        check("stdin reached the command", result.stdout == "SHOUT", result)

        print("a timeout")
        # The command starts a child of its own, and one that left its session: killing only a shell would miss both.
        command = f"echo before; sh -c 'sleep 300; : {MARK}' & setsid sh -c 'sleep 300; : {MARK}' & sh -c 'sleep 300; : {MARK}'"
        running = asyncio.create_task(sandbox.exec(command, timeout_s=1.5))
        seen = await processes(lambda n: n >= 3, seconds=1.3)
        check("the whole tree is running", len(seen) >= 3, seen)
        result = await running
        check("it is a result, not an exception", result.error_type == "timeout" and result.return_code == 125, result)
        check("what was printed before is kept", result.stdout == "before\n", result)
        alive = await processes(lambda n: n == 0, seconds=2)
        check("no process of it is left", not alive, alive)
        result = await sandbox.exec("echo still here")
        check("the sandbox goes on", result.stdout == "still here\n", result)

        print("32 commands at once")
        start = time.perf_counter()
        results = await asyncio.gather(*(sandbox.exec(f"echo {i}") for i in range(32)))
        took = time.perf_counter() - start
        check(
            f"each has its own output ({1000 * took:.0f} ms)",
            [r.stdout for r in results] == [f"{i}\n" for i in range(32)],
        )
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
