"""What concerns the whole process: its exit, forks, signals, and how the library is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import pytest

from nemo_gym_sandbox._core.lib import ABI_MAJOR, ABI_MINOR

from .conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

Script: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


def clean(run: subprocess.CompletedProcess[str], code: int = 0, out: str = "") -> None:
    assert (run.returncode, run.stdout, run.stderr) == (code, out, "")


IN_FLIGHT = """
    async def main():
        provider = Mem({})
        handle = await provider.create(SandboxSpec())
        keep.append(handle)
        bridge = running_bridge()
        for i in range(50):
            keep.append(bridge.start(codec.TEST, codec.encode({"what": "wait"})))
            keep.append(bridge.start(codec.EXEC, codec.encode({"sandbox": handle.raw.number, "command": "sleep 1000"})))
        keep.append(asyncio.ensure_future(provider.exec_stream(handle, "yes 100000000000", on_stdout=lambda c: None)))
        for _ in range(5):
            await asyncio.sleep(0.01)

    import logging
    logging.getLogger("asyncio").disabled = True  # it tells of tasks that are dropped while they wait
    keep = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
"""


def test_exits_with_operations_in_flight_are_quiet(script: Script, tmp_path: Path) -> None:
    """Nothing is closed, output flows: the interpreter may end at any point of that."""
    endings = ["", "sys.exit(0)\n", "loop.close()\n", "del keep, loop; gc.collect()\n"]
    clean(script(IN_FLIGHT))
    source = (tmp_path / "program.py").read_text()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}

    def again(number: int) -> None:
        program = tmp_path / f"program{number}.py"
        program.write_text(source + endings[number % len(endings)])
        clean(
            subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=60, check=False)
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(again, range(49)))


def test_exit_while_another_thread_runs_a_loop(script: Script) -> None:
    clean(
        script("""
            async def forever(began):
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                began.set()
                while True:
                    await asyncio.gather(*(provider.exec(handle, "yes 50000") for _ in range(20)))

            began = threading.Event()
            threading.Thread(target=lambda: asyncio.run(forever(began)), daemon=True).start()
            began.wait()
            time.sleep(0.05)
        """)
    )


def test_a_shutdown_is_bounded(script: Script) -> None:
    """Operations that do not end keep nobody."""
    clean(
        script(
            """
            async def main():
                for _ in range(10):
                    running_bridge().start(codec.TEST, codec.encode({"what": "stubborn"}))  # a minute
                await asyncio.sleep(0.05)
            asyncio.run(main())
        """,
            timeout=30,
        )
    )


def test_a_forked_child_raises_at_once_and_the_parent_goes_on(script: Script) -> None:
    clean(
        script(
            """
            import warnings
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 and later warn of forks with threads

            def refuses(what):
                try:
                    what()
                except RuntimeError as error:
                    return "'spawn' or 'forkserver'" in str(error)
                return False

            async def main():
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                bridge = running_bridge()
                pid = os.fork()
                if pid == 0:
                    # The parent's loop can't be used here, but its objects may be touched, and dropped.
                    ok = refuses(running_bridge) and refuses(lambda: Mem({})) and refuses(lib.library)
                    os._exit(11 if ok else 12)
                loop = asyncio.get_running_loop()
                _, status = await loop.run_in_executor(None, os.waitpid, pid, 0)
                assert os.waitstatus_to_exitcode(status) == 11, status
                for i in range(20):
                    assert (await provider.exec(handle, f"echo {i}")).stdout == f"{i}\\n"

            asyncio.run(main())
        """
        )
    )


def test_a_forked_child_can_run_loops_and_exit(script: Script) -> None:
    clean(
        script("""
            import warnings
            warnings.simplefilter("ignore", DeprecationWarning)

            async def use(provider, handles):
                handles.append(await provider.create(SandboxSpec()))

            async def in_child(provider, handle):
                try:
                    await provider.exec(handle, "true")
                except RuntimeError as error:
                    return "forked child" in str(error)
                return False

            provider, handles = Mem({}), []
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use(provider, handles))
            pid = os.fork()
            if pid == 0:
                ok = asyncio.run(in_child(provider, handles[0]))
                del provider, handles, loop
                gc.collect()
                sys.exit(0 if ok else 1)  # with atexit and all destructors
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert loop.run_until_complete(provider.exec(handles[0], "echo parent")).stdout == "parent\\n"
            loop.close()
        """)
    )


def test_a_parent_that_only_imports_can_fork(script: Script) -> None:
    clean(
        script("""
            async def use():
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                assert (await provider.exec(handle, "echo x")).stdout == "x\\n"

            assert lib.loaded() is None
            pid = os.fork()
            if pid == 0:
                asyncio.run(use())
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            asyncio.run(use())
        """)
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes(script: Script, method: str) -> None:
    clean(
        script(
            """
            import multiprocessing

            async def use(text):
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                return (await provider.exec(handle, f"echo {text}")).stdout

            def work(text):
                return asyncio.run(use(text))

            if __name__ == "__main__":
                assert work("parent") == "parent\\n"
                with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
                    assert pool.map(work, "abc") == ["a\\n", "b\\n", "c\\n"]
        """,
            method,
        )
    )


SIGNALLED = """
    async def main():
        provider = Mem({})
        handle = await provider.create(SandboxSpec())
        tasks = [asyncio.ensure_future(provider.exec(handle, "sleep 1000")) for _ in range(50)]
        tasks.append(asyncio.ensure_future(provider.exec_stream(handle, "yes 10000000000", on_stdout=lambda c: None)))
        await asyncio.sleep(0.02)
        threading.Timer(0.02, os.kill, (os.getpid(), int(sys.argv[1]))).start()
        await asyncio.wait(tasks)
"""


def test_keyboard_interrupt(script: Script) -> None:
    run = script(
        SIGNALLED + "    try: asyncio.run(main())\n    except KeyboardInterrupt: print('interrupted')\n",
        str(int(signal.SIGINT)),
    )
    clean(run, 0, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_default_actions_of_signals_stay(script: Script, number: signal.Signals) -> None:
    clean(
        script(
            "    import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
            + SIGNALLED
            + "    asyncio.run(main())\n",
            str(int(number)),
        ),
        -number,
    )


def test_signal_handlers_and_children_work(script: Script) -> None:
    clean(
        script("""
            async def main():
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                loop = asyncio.get_running_loop()
                got = asyncio.Event()
                loop.add_signal_handler(signal.SIGTERM, got.set)
                children = 0
                def child_ended(number, frame):
                    nonlocal children
                    children += 1
                signal.signal(signal.SIGCHLD, child_ended)
                async def commands():
                    for i in range(300):
                        assert (await provider.exec(handle, f"echo {i}")).stdout == f"{i}\\n"
                async def programs():
                    for i in range(10):
                        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
                        assert await process.wait() == 3
                await asyncio.gather(commands(), programs())
                assert children
                os.kill(os.getpid(), signal.SIGTERM)
                await got.wait()
            asyncio.run(main())
        """)
    )


def test_a_storm_of_signals(script: Script) -> None:
    """Handlers that were installed after the library must not run on a goroutine's stack."""
    clean(
        script("""
            count = 0
            def handler(number, frame):
                global count
                count += 1
            async def main():
                provider = Mem({})
                signal.signal(signal.SIGUSR1, handler)
                signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
                handle = await provider.create(SandboxSpec())
                while count < 500:
                    await asyncio.gather(*(provider.exec(handle, "yes 20000") for _ in range(10)))
            signal.signal(signal.SIGALRM, handler)
            asyncio.run(main())
            signal.setitimer(signal.ITIMER_REAL, 0)
        """)
    )


def test_a_closed_pipe_as_stdout(script: Script) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        run = script(
            """
            async def main():
                provider = Mem({})
                handle = await provider.create(SandboxSpec())
                return (await provider.exec(handle, "echo x")).stdout

            asyncio.run(main())
            try:
                print("x" * 100_000, flush=True)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.exit(5)
            """,
            stdout=write,
            capture_output=False,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (5, "")


def test_faulthandler_before_the_library(script: Script) -> None:
    clean(
        script(
            """
            import faulthandler
            faulthandler.enable()
            async def main():
                provider = Mem({})
                reply = await running_bridge().call(codec.TEST, codec.encode({"what": "nil"}))
                assert reply.status == -102, reply
            asyncio.run(main())
        """,
            env={"NGS_TEST_HOOKS": "1"},
        )
    )


def test_importing_loads_nothing(script: Script) -> None:
    clean(script("    assert lib.loaded() is None and 'libngs' not in open('/proc/self/maps').read()\n"))


def test_go_gets_enough_threads_and_obeys(script: Script) -> None:
    check = "    print(lib.library().stats()['gomaxprocs'] >= 8, end='')\n"
    clean(script(check), out="True")
    clean(script("    print(lib.library().stats()['gomaxprocs'], end='')\n", env={"GOMAXPROCS": "3"}), out="3")
    clean(script("    os.environ['GOMAXPROCS'] = '3'; print(lib.library().stats()['gomaxprocs'], end='')\n"), out="3")


def test_test_hooks_are_off_by_default(script: Script) -> None:
    clean(
        script(
            """
            async def main():
                try:
                    await running_bridge().call(codec.TEST, codec.encode({"what": "panic"}))
                except RuntimeError as error:
                    print(error, end="")
            asyncio.run(main())
        """,
            env={"NGS_TEST_HOOKS": ""},
        ),
        out="the operation was not started: an argument is not valid",
    )


LOAD = """
    from pathlib import Path
    try:
        lib.Library(Path(sys.argv[1]))
    except ImportError as error:
        print(error, end="")
"""


def told(script: Script, path: Path | str, before: str = "") -> str:
    run = script(before + LOAD, str(path))
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def test_a_missing_library_is_explained(script: Script, tmp_path: Path) -> None:
    text = told(script, tmp_path / "libngs.so")
    assert str(tmp_path / "libngs.so") in text
    assert "./build.sh lib" in text


def test_other_files_are_explained(script: Script, tmp_path: Path) -> None:
    (tmp_path / "libngs.so").write_text("not a library")
    assert "can't be loaded" in told(script, tmp_path / "libngs.so")
    source = tmp_path / "other.c"
    for body, expected in (
        ("int other(void) { return 0; }", "is not the sandbox library"),
        (
            "unsigned ngs_abi_version(void) { return 7u << 16 | 3; }",
            f"speaks version 7.3 of its interface, this package needs {ABI_MAJOR}.{ABI_MINOR}",
        ),
    ):
        source.write_text(body)
        library = tmp_path / f"lib{len(body)}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        assert expected in told(script, library)


def test_a_second_library_is_refused(script: Script, tmp_path: Path) -> None:
    copy = tmp_path / "libngs.so"
    copy.write_bytes(b"")
    text = told(script, copy, "    lib.library()\n")
    assert "already has the sandbox library" in text
    assert str(copy) in text


def test_musl_is_explained(script: Script) -> None:
    run = script("""
        os.confstr = lambda name: None  # what Python answers on Alpine
        try:
            Mem({})
        except ImportError as error:
            print(error, end="")
    """)
    assert "musl" in run.stdout
    assert "glibc" in run.stdout


def test_changes_of_the_environment_reach_the_library(script: Script) -> None:
    """Go reads the environment when the process begins; what Python changes later has to be told to it."""
    clean(
        script(
            """
            async def hooks():
                return (await running_bridge().call(codec.TEST, codec.encode({"what": "nil"}))).status

            class Local(NativeProvider):
                name = "local"

            os.environ["NGS_TEST_HOOKS"] = "1"
            assert asyncio.run(hooks()) == -102
            os.environ["NEMO_GYM_SANDBOX_LOCAL_ISOLATION"] = "nonsense"
            try:
                Local({})
            except ValueError as error:
                assert "nonsense" in str(error)
            else:
                sys.exit("not seen")
            del os.environ["NEMO_GYM_SANDBOX_LOCAL_ISOLATION"]
            Local({"isolation": "none"})
            """,
            env={"NGS_TEST_HOOKS": ""},
        )
    )
