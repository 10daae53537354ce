"""The table of a sandbox's life, which the Go core is held to as well, over both faces of the Python API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from api_doubles import MemoryProvider

from nemo_gym_sandbox import AsyncSandbox, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = json.loads((Path(__file__).parents[2] / "tables" / "lifecycle.json").read_text())
CASES = {case["name"]: case for case in TABLE["cases"]}

REFUSALS = {
    "has been stopped": "closed",
    "sync loop is closed": "closed",  # how the blocking face, which has no loop left then, says it
    "has not been started": "not_started",  # last: a stopped one says this too
    "already started": "conflict",
}
"""How the API says what the table names; all are RuntimeErrors. The first that fits counts."""


class ProviderFailure(Exception):
    """The provider's own error, which nothing else raises."""


def script(provider: MemoryProvider, operation: str) -> str:
    """Let the provider fail where the step says so; what to call."""
    provider.fail = {"start!": {"create": [ProviderFailure()]}, "stop!": {"close": [ProviderFailure()]}}.get(
        operation, {}
    )
    return operation.rstrip("!")


def outcome(error: Exception) -> str:
    """What an exception is in the table's words."""
    if isinstance(error, ProviderFailure):
        return "error"
    assert isinstance(error, RuntimeError)
    return next((word for text, word in REFUSALS.items() if text in str(error)), f"unknown refusal: {error}")


async def live(case: dict[str, Any], provider: MemoryProvider) -> list[list[str]]:
    sandbox = AsyncSandbox(provider, SandboxSpec())
    came: list[list[str]] = []
    for operation, _ in case["steps"]:
        name = script(provider, operation)
        try:
            answer = await (sandbox.exec("true") if name == "exec" else getattr(sandbox, name)())
        except Exception as error:
            came.append([operation, outcome(error)])
        else:
            came.append([operation, answer.value if name == "status" else "ok"])
    provider.fail = {}
    await sandbox.stop()
    return came


def live_blocking(case: dict[str, Any], provider: MemoryProvider) -> list[list[str]]:
    sandbox = Sandbox(provider, SandboxSpec())
    came: list[list[str]] = []
    for operation, _ in case["steps"]:
        name = script(provider, operation)
        try:
            answer: Any = sandbox.exec("true") if name == "exec" else getattr(sandbox, name)()
        except Exception as error:
            came.append([operation, outcome(error)])
        else:
            came.append([operation, answer.value if name == "status" else "ok"])
    provider.fail = {}
    sandbox.stop()
    return came


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("live", [lambda *given: asyncio.run(live(*given)), live_blocking], ids=["async", "blocking"])
def test_life_goes_as_the_table_says(name: str, live: Callable[..., list[list[str]]]):
    case, provider = CASES[name], MemoryProvider()
    assert live(case, provider) == case["steps"]
    if "closes" in case:
        assert provider.calls.count("close") == case["closes"]


def test_the_table_is_read_whole():
    assert len(CASES) == len(TABLE["cases"]) > 0
