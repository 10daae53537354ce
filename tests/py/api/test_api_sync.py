"""The blocking face: same results, its thread, its refusals, and what becomes of a forgotten sandbox."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest
from api_doubles import FullProvider, MemoryProvider
from api_terminals import DetachableShell, TerminalProvider

from nemo_gym_sandbox import AsyncSandbox, Sandbox, SandboxSpec, SandboxStatus, _loop_thread
from nemo_gym_sandbox.providers import registry

if TYPE_CHECKING:
    from pathlib import Path

SPEC = SandboxSpec(image="img", workdir="/w", ports=[80])


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nemo-gym-sandbox"]


def gone(what: object, deadline_s: float = 5) -> bool:
    """Whether what() becomes empty in time."""
    end = time.monotonic() + deadline_s
    while what():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_the_whole_life_of_one(tmp_path: Path):
    provider = FullProvider()
    provider.script = [("stdout", b"now")]
    with Sandbox(provider, SPEC) as sandbox:
        assert sandbox.status() is SandboxStatus.UNKNOWN
        assert sandbox.start() is sandbox
        assert sandbox.sandbox_id == "box-0"
        assert (sandbox.provider, sandbox.provider_name, sandbox.spec) == (provider, "full", SPEC)
        assert sandbox.exec("x", env={"K": "v"}, timeout_s=None).stdout == "ran x"
        assert provider.execs[0][1]["cwd"] == "/w"
        seen: list[tuple[str, str]] = []
        sandbox.exec("y", on_stdout=lambda text: seen.append((text, threading.current_thread().name)), stdin=[b"in"])
        assert seen == [("now", "nemo-gym-sandbox")]
        assert provider.stdin == b"in"
        (tmp_path / "up").write_bytes(b"data")
        sandbox.upload(tmp_path / "up", "/f")
        sandbox.download("/f", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == b"data"
        assert sandbox.endpoint(80).endpoint == "http://127.0.0.1:81"
        sandbox.pause()
        assert sandbox.status() is SandboxStatus.PAUSED
        sandbox.resume()
        sandbox.set_default_user("agent")
        sandbox.set_default_workdir("/home")
        sandbox.exec("z")
        assert (provider.execs[-1][1]["user"], provider.execs[-1][1]["cwd"]) == ("agent", "/home")
    assert provider.calls[-2:] == ["close", "aclose"]
    assert not loop_threads()


def test_after_the_stop():
    provider = MemoryProvider()
    sandbox = Sandbox(provider, SPEC).start()
    sandbox.stop()
    sandbox.stop()
    assert sandbox.status() is SandboxStatus.STOPPED
    for call in (lambda: sandbox.exec("x"), sandbox.start, sandbox.serialize, sandbox.pause):
        with pytest.raises(RuntimeError, match="sync loop is closed"):
            call()
    assert provider.calls == ["create", "close", "aclose"]


def test_a_failed_stop_can_be_repeated():
    provider = MemoryProvider(close=[RuntimeError("busy")])
    sandbox = Sandbox(provider, SPEC).start()
    with pytest.raises(RuntimeError, match="busy"):
        sandbox.stop()
    assert sandbox.status() is SandboxStatus.RUNNING
    sandbox.stop()
    assert not loop_threads()


async def test_any_call_where_a_loop_runs_is_refused():
    with pytest.raises(RuntimeError, match="use AsyncSandbox in async code"):
        Sandbox(MemoryProvider(), SPEC)
    with pytest.raises(RuntimeError, match="use AsyncSandbox in async code"):
        Sandbox.connect({"sandbox_id": "x"}, provider=FullProvider())
    sandbox = await asyncio.to_thread(lambda: Sandbox(MemoryProvider(), SPEC).start())
    for call in (lambda: sandbox.exec("x"), sandbox.status, sandbox.stop):
        with pytest.raises(RuntimeError, match="use AsyncSandbox in async code"):
            call()
    await asyncio.to_thread(sandbox.stop)


def test_errors_of_the_constructor_leave_no_thread(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def __init__(self) -> None:
            raise LookupError("no engine")

    monkeypatch.setattr(registry, "_registered", {"broken": Broken})
    with pytest.raises(LookupError, match="no engine"):
        Sandbox({"broken": {}}, SPEC)
    with pytest.raises(RuntimeError, match="connect"):
        Sandbox.connect({"sandbox_id": "x"}, provider=MemoryProvider())
    assert not loop_threads()


def test_a_call_that_takes_too_long_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_loop_thread, "CALL_TIMEOUT_S", 0.1)
    cleaned: list[str] = []

    class Slow(MemoryProvider):
        async def exec(self, handle, command, **_):
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(command)

    sandbox = Sandbox(Slow(), SPEC).start()
    with pytest.raises(TimeoutError, match=r"timed out waiting for the sync loop after 0\.1s"):
        sandbox.exec("x")
    assert cleaned == ["x"]
    sandbox.stop()


def test_a_timeout_of_the_operation_is_its_own():
    sandbox = Sandbox(MemoryProvider(exec=[TimeoutError("the engine's")]), SPEC).start()
    with pytest.raises(TimeoutError, match="the engine's"):
        sandbox.exec("x")
    sandbox.stop()


@pytest.mark.parametrize("wakes", [True, False], ids=["the thread that waits", "another thread"])
def test_an_interrupt_cancels_the_operation(wakes: bool):
    """A signal that another thread got, or that came just before the waiting began, was not noticed for an hour."""
    cleaned = threading.Event()
    inside = threading.Event()

    class Slow(MemoryProvider):
        async def exec(self, handle, command, **_):
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()

    sandbox = Sandbox(Slow(), SPEC).start()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        inside.wait(5)
        signal.pthread_kill(main if wakes else threading.get_ident(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec("x")
    assert cleaned.is_set()
    sandbox.stop()


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_an_exit_out_of_a_callback_reaches_the_caller_and_the_sandbox_is_stopped(ending: type[BaseException]):
    """It ended the loop: the caller got a RuntimeError, and the sandbox could not be stopped any more."""

    class Leaving(MemoryProvider):
        async def exec(self, handle, command, **_):
            async def callback() -> None:
                raise ending

            await asyncio.create_task(callback())

    provider = Leaving()
    with pytest.raises(ending), Sandbox(provider, SPEC) as sandbox:
        sandbox.start()
        sandbox.exec("x")
    assert provider.calls[-2:] == ["close", "aclose"]
    assert "nemo-gym-sandbox" not in [thread.name for thread in threading.enumerate()]


def test_a_forgotten_sandbox_is_stopped():
    provider = MemoryProvider()
    sandbox = Sandbox(provider, SPEC).start()
    del sandbox
    gc.collect()
    assert gone(loop_threads)
    assert provider.calls == ["create", "close", "aclose"]


def test_a_forgotten_sandbox_whose_stop_fails_is_only_logged(caplog: pytest.LogCaptureFixture):
    sandbox = Sandbox(MemoryProvider(close=[RuntimeError("engine gone")]), SPEC).start()
    del sandbox
    gc.collect()
    assert gone(loop_threads)
    assert "engine gone" in caplog.text


def test_a_forgotten_sandbox_that_was_handed_over_lives_on():
    provider = FullProvider()
    sandbox = Sandbox(provider, SPEC).start()
    sandbox.serialize()
    del sandbox
    gc.collect()
    assert gone(loop_threads)
    assert provider.calls == ["create", "serialize_handle", "aclose"]


def test_connect_and_disconnect():
    provider = FullProvider()
    sandbox = Sandbox.connect({"sandbox_id": "far", "workdir": "/w"}, provider=provider)
    assert sandbox.exec("x").stdout == "ran x"
    assert sandbox.serialize(scope="s")["scope"] == "s"
    sandbox.disconnect()
    sandbox.disconnect()
    sandbox.stop()
    assert sandbox.status() is SandboxStatus.UNKNOWN
    assert provider.calls == ["connect", "exec", "serialize_handle", "disconnect_handle", "aclose"]
    assert not loop_threads()
    own = Sandbox(FullProvider(), SPEC).start()
    with pytest.raises(RuntimeError, match="valid only for a sandbox rebuilt with connect"):
        own.disconnect()
    own.stop()


def test_a_forgotten_connection_is_let_go_of():
    provider = FullProvider()
    sandbox = Sandbox.connect({"sandbox_id": "far"}, provider=provider)
    del sandbox
    gc.collect()
    assert gone(loop_threads)
    assert provider.calls == ["connect", "disconnect_handle", "aclose"]


def test_start_with_setup_runs_the_setup_here():
    provider = MemoryProvider()
    names: list[str] = []

    def setup(box: Sandbox) -> None:
        names.append(threading.current_thread().name)
        box.exec("prepare")

    sandbox = Sandbox(provider).start_with_setup(SPEC, setup)
    assert names == [threading.current_thread().name]
    sandbox.stop()

    failing = MemoryProvider(exec=[LookupError("no tools")])
    with pytest.raises(LookupError, match="no tools"):
        Sandbox(failing).start_with_setup(SPEC, setup)
    assert failing.calls == ["create", "exec", "close", "aclose"]
    assert not loop_threads()


def test_sidecars(tmp_path: Path):
    provider = FullProvider()
    with Sandbox(provider, SandboxSpec(sidecars=[{"name": "s", "image": "i"}])) as sandbox:
        sandbox.start()
        assert sandbox.sidecar("s").exec("a", "b", timeout_s=3).stdout == "sidecar"
        sandbox.sidecar("s").download("/x", tmp_path / "x")
    assert provider.sidecar_calls == [("exec", "s", ["a", "b"], 3), ("download", "s", "/x")]


def test_terminals():
    provider = TerminalProvider(DetachableShell)
    with Sandbox(provider, SPEC) as sandbox:
        sandbox.start()
        with sandbox.pty.create() as session:
            inner = provider.sessions[0]
            assert (session.session_id, session.mode, session.closed) == (inner.session_id, "pty", False)
            assert sandbox.pty.exec("x").stdout == "hello\r\n"
            assert sandbox.pty.exec("x", session=session).stdout == "hello\r\n"
            assert sandbox.pty.exec("x", session=session, detach=True).return_code == 7
            assert session.run_detached("y") == (b"merged", 7)
            inner.out.put_nowait(b"more")
            assert session.read(timeout_s=5) == b"more"
            with pytest.raises(TimeoutError):
                session.read_stderr(timeout_s=0.01)
            session.resize(1, 2)
            session.send_signal("SIGTERM")
            assert (inner.size, inner.signal) == ((1, 2), "SIGTERM")
            session.reattach()
            with pytest.raises(NotImplementedError, match=r"detach\(\)"):
                session.detach()
            inner.out.put_nowait(b"last")
            inner.end(5)
            assert list(session) == [b"last"]
            assert session.wait_exit(timeout_s=5) == 5
        assert session.closed
        assert sandbox.pty.attach("other", since=0).session_id
        assert provider.attaches == [("other", True, 0)]


def test_many_threads_share_one_sandbox():
    provider = MemoryProvider()
    sandbox = Sandbox(provider, SPEC).start()
    results: dict[int, str | None] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: sandbox.exec(f"c{i}").stdout})) for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: f"ran c{i}" for i in range(20)}
    sandbox.stop()


def test_a_call_that_another_threads_stop_overtakes_does_not_wait_for_ever():
    inside = threading.Event()
    errors: list[BaseException] = []

    class Slow(MemoryProvider):
        async def exec(self, handle, command, **_):
            inside.set()
            await asyncio.Event().wait()

    sandbox = Sandbox(Slow(), SPEC).start()

    def call() -> None:
        try:
            sandbox.exec("x")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(5)
    sandbox.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert "sync loop is closed" in str(errors[0])
    assert isinstance(errors[0], RuntimeError)


SCRIPT_HEAD = """
import os, sys
sys.path[:0] = {path!r}
from api_doubles import FullProvider, MemoryProvider
from nemo_gym_sandbox import Sandbox, SandboxSpec
class Loud(FullProvider):
    async def _enter(self, method):
        await super()._enter(method)
        os.write(1, (method + " ").encode())
sandbox = Sandbox(Loud(), SandboxSpec()).start()
"""


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    head = SCRIPT_HEAD.format(path=sys.path)
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(body)], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_interpreters_exit_stops_what_was_forgotten():
    done = run_script("")
    assert (done.returncode, done.stdout, done.stderr) == (0, "create close aclose ", "")
    done = run_script("sandbox.serialize()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "create serialize_handle aclose ", "")


def test_a_forked_child_is_refused_and_leaves_the_sandbox_alone():
    done = run_script("""
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.exec("x")
            except RuntimeError as error:
                assert "fork" in str(error), error
                sys.exit(17)
            sys.exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        sandbox.exec("y")
        sandbox.stop()
    """)
    assert (done.returncode, done.stdout) == (0, "create exec close aclose "), done.stderr


def test_everything_asynchronous_has_its_blocking_twin():
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    helpers = {"started_handle", "exec_cwd", "exec_user"}
    assert public(AsyncSandbox) - helpers == public(Sandbox)
