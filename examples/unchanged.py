# pyright: reportMissingImports=false
"""Grades a few attempts at a task, each in a sandbox of its own. Written for nemo_gym.sandbox, and run here as it is.

python -m nemo_gym_sandbox run examples/unchanged.py
"""

import asyncio
import sys

from nemo_gym.sandbox import AsyncSandbox, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.providers.base import SandboxExecResult

ATTEMPTS = {
    "right": "def double(x):\n    return 2 * x\n",
    "wrong": "def double(x):\n    return x + 2\n",
    "endless": "def double(x):\n    while True:\n        pass\n",
}
CHECK = "from attempt import double\nassert [double(x) for x in range(5)] == [0, 2, 4, 6, 8]\n"


async def grade(attempt: str, provider: str) -> SandboxExecResult:
    spec = SandboxSpec(files={"attempt.py": attempt, "check.py": CHECK})
    async with AsyncSandbox({provider: {}}, spec) as sandbox:
        await sandbox.start()
        assert await sandbox.status() is SandboxStatus.RUNNING
        return await sandbox.exec("python3 check.py", timeout_s=3)


def verdict(result: SandboxExecResult) -> str:
    if result.error_type == "timeout":
        return "took too long"
    return "passed" if result.return_code == 0 else (result.stderr or "").strip().splitlines()[-1]


async def main(provider: str) -> None:
    results = await asyncio.gather(*(grade(attempt, provider) for attempt in ATTEMPTS.values()))
    for name, result in zip(ATTEMPTS, results, strict=True):
        print(f"{name}: {verdict(result)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
