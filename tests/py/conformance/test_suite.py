"""The conformance cases themselves: they find what is broken, and leave out only what a backend declares."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from plain_provider import PlainProvider
from test_conformance import TestDockerAgent, TestPlainPython

import nemo_gym_sandbox
from nemo_gym_sandbox import SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus, testing
from nemo_gym_sandbox.testing._backend import difference_names
from nemo_gym_sandbox.testing._known import backend as known_backend
from nemo_gym_sandbox.testing._known import with_differences

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_gym_sandbox.testing import Backend

ROOT = Path(nemo_gym_sandbox.__file__).parent.parent
PLAIN = TestPlainPython.backend
FULL = TestDockerAgent.backend

# Only what they are: their cases are collected where they are defined.
del TestDockerAgent, TestPlainPython


class GuessesCodes(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        result = await super().exec(handle, command, **options)
        return dataclasses.replace(result, error_type="timeout") if result.return_code == 124 else result


class LosesOutput(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        result = await super().exec(handle, command, **options)
        return dataclasses.replace(result, stdout=(result.stdout or "")[:65536])


class ForgetsVariables(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        return await super().exec(handle, command, **{**options, "env": None})


class KillsOnlyTheShell(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        return await super().exec(handle, f"setsid sh -c '{command}'", **options)


class SwallowsCancellation(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        try:
            return await super().exec(handle, command, **options)
        except asyncio.CancelledError:
            return SandboxExecResult("", "", 0)


class CutsFiles(PlainProvider):
    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        await super().upload_file(handle, source_path, target_path)
        with handle.raw.path(target_path).open("r+b") as file:
            file.truncate(18432)


class LeavesItsFolder(PlainProvider):
    async def close(self, handle: SandboxHandle) -> None:
        handle.raw.closed = True


class ClosesOnce(PlainProvider):
    async def close(self, handle: SandboxHandle) -> None:
        if handle.raw.closed:
            raise RuntimeError("it is gone")
        await super().close(handle)


class LiesAboutItsState(PlainProvider):
    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING


class IgnoresUsers(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        return await super().exec(handle, command, **{**options, "user": None})


class LeaksItsEnvironment(PlainProvider):
    async def exec(self, handle: SandboxHandle, command: str, **options: Any) -> SandboxExecResult:
        return await super().exec(handle, command, **{**options, "env": {**os.environ, **(options["env"] or {})}})


BROKEN: dict[type[PlainProvider], str] = {
    GuessesCodes: "a_codes_meaning_is_guessed",
    LosesOutput: "the_end_of_an_output_is_lost",
    ForgetsVariables: "bytes_of_a_value_are_changed_on_the_way",
    KillsOnlyTheShell: "only_the_client_of_a_late_command_ends",
    SwallowsCancellation: "a_cancelled_command_goes_on",
    CutsFiles: "a_files_content_changes_at_some_size",
    LeavesItsFolder: "a_sandbox_leaves_something_behind",
    ClosesOnce: "the_backend_fails_when_told_to_end_what_has_ended",
    LiesAboutItsState: "the_backend_fails_when_told_to_end_what_has_ended",
    IgnoresUsers: "another_user_is_ignored_where_there_is_only_one",
    LeaksItsEnvironment: "values_of_the_caller_leak_into_the_sandbox",
}


def case_named(name: str) -> testing.Case:
    return next(case for case in testing.cases() if case.name == name)


async def outcomes(backend: Backend, *names: str) -> dict[str, testing.Outcome]:
    chosen = [case_named(name) for name in names]
    return {outcome.case.name: outcome async for outcome in testing.run(backend, chosen)}


@pytest.mark.parametrize("provider", BROKEN, ids=lambda provider: provider.__name__)
async def test_what_is_broken_is_found(provider: Callable[[str], PlainProvider], tmp_path: Path):
    # A short deadline: that a process does not end is known only when it is over.
    backend = dataclasses.replace(
        PLAIN, provider=lambda: provider(str(tmp_path)), leftovers=lambda: map(str, tmp_path.iterdir()), slow=0.15
    )
    name = BROKEN[provider]
    broken = await outcomes(backend, name)
    assert isinstance(broken[name].error, AssertionError | RuntimeError)
    assert not broken[name].passed
    whole = await outcomes(dataclasses.replace(backend, provider=lambda: PlainProvider(str(tmp_path)), slow=1), name)
    assert whole[name].error is None


async def test_a_case_that_hangs_fails(tmp_path: Path):
    class Hangs(PlainProvider):
        async def status(self, handle: SandboxHandle) -> SandboxStatus:
            return await asyncio.get_running_loop().create_future()

    backend = dataclasses.replace(PLAIN, provider=lambda: Hangs(str(tmp_path)), leftovers=None, slow=0.01)
    came = await outcomes(backend, "a_running_sandbox_does_not_say_so")
    assert isinstance(came["a_running_sandbox_does_not_say_so"].error, TimeoutError)


async def test_a_sandbox_that_does_not_start_fails_every_case_and_ends_nothing_early():
    class Fails(PlainProvider):
        async def create(self, spec: SandboxSpec) -> SandboxHandle:
            raise nemo_gym_sandbox.SandboxCreateError("no room")

    backend = dataclasses.replace(PLAIN, provider=Fails)
    came = await outcomes(backend, "an_empty_command_hangs", "closed_streams_are_taken_for_the_end")
    assert [str(outcome.error) for outcome in came.values()] == ["no room", "no room"]


def test_every_difference_changes_what_is_run_and_nothing_else_leaves_a_case_out():
    every = {case.name for case in testing.cases()}
    assert len(every) == len(testing.cases()) > 100
    only_for_differences = {case.name for case in testing.cases() if case.only_if}
    assert {case.name for case in testing.cases(FULL)} == every - only_for_differences
    used = {name for case in testing.cases() for name in (*case.unless, case.only_if) if name}
    # What a case looks at itself, instead of being left out.
    looked_at = {"late_users", "no_home", "no_terminal_signal_codes", "remote_files"}
    assert used | looked_at == set(difference_names())
    for name in used:
        fits = {case.name for case in testing.cases(dataclasses.replace(FULL, **{name: True}))}
        assert fits != every - only_for_differences
    assert {case.group for case in testing.cases()} >= {"exec", "output", "timeout", "files", "lifecycle", "share"}


def test_a_class_has_a_method_for_each_case_that_fits_it():
    class Mine(testing.SandboxConformance):
        backend = PLAIN

    methods = {name.removeprefix("test_") for name in dir(Mine) if name.startswith("test_")}
    assert methods == {case.name for case in testing.cases(PLAIN)}
    assert Mine.test_an_empty_command_hangs.__doc__ == "It succeeds."  # type: ignore[attr-defined]
    assert not [name for name in dir(testing.SandboxConformance) if name.startswith("test_")]


def test_a_class_sees_what_is_left_in_this_process(tmp_path: Path):
    class Leaks(PlainProvider):
        async def aclose(self) -> None:
            left.append(os.open("/dev/null", os.O_RDONLY))

    class Mine(testing.SandboxConformance):
        backend = dataclasses.replace(PLAIN, provider=lambda: Leaks(str(tmp_path)), leftovers=None)

    left: list[int] = []
    Mine.setup_class()
    Mine().test_a_running_sandbox_does_not_say_so()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="/dev/null"):
        Mine.teardown_class()
    for descriptor in left:
        os.close(descriptor)


def test_missing_capabilities_of_a_registered_provider_count_as_declared(monkeypatch: pytest.MonkeyPatch):
    from nemo_gym_sandbox.providers import registry

    monkeypatch.setitem(registry._registered, "plain", PlainProvider)
    made = known_backend({"plain": None})
    assert set(made.differences()) == {
        "no_stdin", "no_streaming", "no_back_pressure", "no_pause", "no_connect", "no_endpoints", "no_terminals",
        "no_attach",
    }  # fmt: skip
    assert "no_users" in with_differences(made, ["no_users"]).differences()
    with pytest.raises(ValueError, match="did you mean 'no_users'"):
        with_differences(made, ["no_user"])


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nemo_gym_sandbox.testing", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_table_has_a_column_for_each_provider():
    bare = '{"local": {"isolation": "none"}}'
    done = program("--provider", "local", "--provider", bare, "--case", "a_codes_*", "--case", "another_user_*")
    assert done.stderr == ""
    head, *rows = [line.split("  ") for line in done.stdout.splitlines()[:4]]
    assert [cell.strip() for cell in head if cell.strip()] == ["case", "local", bare]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells == {
        "a_codes_meaning_is_guessed": ["ok", "ok"],
        "another_user_is_ignored": ["-", "-"],
        "another_user_is_ignored_where_there_is_only_one": ["ok", "ok"],
    }
    assert "local: 2 of 2 passed, 1 without a meaning" in done.stdout
    assert done.returncode == 0


def test_a_failure_is_told_with_its_reason_and_the_exit_status():
    done = program("--provider", "e2b", "--case", "an_empty_command_hangs")
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "NotImplementedError: This version of nemo_gym_sandbox has no 'e2b' provider" in done.stdout
    rows: list[dict[str, Any]] = json.loads(
        program("--provider", "local", "--json", "--case", "an_empty_command_hangs").stdout
    )
    assert [(row["case"], row["provider"], row["passed"], row["error"]) for row in rows] == [
        ("an_empty_command_hangs", "local", True, None)
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--provider"),
        (["--provider", "local", "--case", "nothing"], "no case is named nothing"),
        (["--provider", '{"a": 1, "b": 2}'], "one name"),
        (["--provider", "local", "--differs", "no_user"], "did you mean"),
        (["--provider", "lokal"], "did you mean 'local'"),
    ],
)
def test_wrong_usage_is_said(arguments: list[str], text: str):
    done = program(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
