"""``run`` runs programs as plain python does: the same output, tracebacks and exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nemo_gym_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(nemo_gym_sandbox.__file__).parent.parent
RUN = ["-m", "nemo_gym_sandbox", "run"]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


PROGRAMS = {
    "sees its arguments": "import sys; print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__)",
    "is the main module": "import sys, __main__; x = 1; print(__main__.x, sys.modules['__main__'].__dict__ is globals())",
    "exits with a status": "import sys; print('out'); sys.exit(3)",
    "exits with a message": "import sys; sys.exit('that is why')",
    "raises": "def f():\n    raise ValueError('no')\n\ntry:\n    f()\nexcept ValueError as e:\n    raise KeyError('x') from e\n",
    "raises with a hook": "import sys\nsys.excepthook = lambda kind, e, tb: print(kind, e, tb.tb_lineno, tb.tb_next)\n1 / 0\n",
    "is no Python": "def f(:\n    pass\n",
    "is interrupted": "raise KeyboardInterrupt\n",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "leaves a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()\n1 / 0\n",
    "registers for the exit": "import atexit; atexit.register(print, 'bye'); 1 / 0",
    "has a group of errors": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "reads its own source": "import inspect\ndef f(): return 42\nprint(inspect.getsource(f))",
    "names its encoding": "# -*- coding: latin-1 -*-\nprint(len('ä'), ascii('ä'))",
    "pickles what it defines": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "starts processes": (
        "import multiprocessing\n"
        "def twice(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(twice, [1, 2]))\n"
    ),
}


def same(folder: Path, plain: list[str], ours: list[str]) -> subprocess.CompletedProcess[str]:
    one, other = python(folder, *plain), python(folder, *RUN, *ours)
    # python -m shows its own two frames, ours shows none.
    stderr = re.sub(r'  File "<frozen runpy>".*\n', "", one.stderr)
    assert (other.returncode, other.stdout, other.stderr) == (one.returncode, one.stdout, stderr)
    return other


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_that(name: str, tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text(PROGRAMS[name], encoding="utf-8")
    done = same(tmp_path, ["sub/program.py", "-m", "a b"], ["--", "sub/program.py", "-m", "a b"])
    if name == "is interrupted":
        assert done.returncode == -signal.SIGINT


def test_a_script_by_a_link_has_the_folder_of_its_file_first(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "program.py").write_text("import neighbour, sys; print(neighbour.x, __file__, sys.path[0])")
    (tmp_path / "real" / "neighbour.py").write_text("x = 'found'")
    (tmp_path / "link.py").symlink_to("real/program.py")
    assert "found" in same(tmp_path, ["link.py"], ["link.py"]).stdout


@pytest.mark.parametrize("arguments", [["missing.py"], ["-m", "missing_module"], ["-m", "package"], ["folder"]])
def test_what_is_not_there(arguments: list[str], tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "folder").mkdir()
    assert same(tmp_path, arguments, arguments).returncode != 0


MODULE = (
    "import sys\nprint(sys.argv, sys.path[0], __name__, __package__, __spec__.name)\nif 'fail' in sys.argv: 1 / 0\n"
)


def module(folder: Path) -> list[str]:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("print('package')")
    (folder / "package" / "inner.py").write_text(MODULE)
    return ["-m", "package.inner"]


def package(folder: Path) -> list[str]:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "__main__.py").write_text("from . import inner\n" + MODULE)
    (folder / "package" / "inner.py").touch()
    return ["-m", "package"]


def archive(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "program.zip", "w") as file:
        file.writestr("__main__.py", "import beside\n" + MODULE)
        file.writestr("beside.py", "")
    return ["program.zip"]


def directory(folder: Path) -> list[str]:
    (folder / "program").mkdir()
    (folder / "program" / "__main__.py").write_text("import beside\n" + MODULE)
    (folder / "program" / "beside.py").touch()
    return ["program"]


@pytest.mark.parametrize("make", [module, package, archive, directory])
@pytest.mark.parametrize("argument", ["fine", "fail"])
def test_other_forms_of_programs(make: Callable[[Path], list[str]], argument: str, tmp_path: Path):
    program = make(tmp_path)
    done = same(tmp_path, [*program, argument], [*program, argument])
    assert (done.returncode != 0) == (argument == "fail")


def test_children_see_the_served_names_too(tmp_path: Path):
    (tmp_path / "child.py").write_text("import nemo_gym.sandbox as s; print(s.AsyncSandbox.__module__)")
    (tmp_path / "program.py").write_text(
        "import multiprocessing, subprocess, sys\n"
        "from nemo_gym.sandbox import SandboxSpec\n"
        "def work(spec): return spec.image\n"
        "if __name__ == '__main__':\n"
        "    subprocess.run([sys.executable, 'child.py'], check=True)\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [SandboxSpec(image='i')]), flush=True)\n"
    )
    done = python(tmp_path, *RUN, "program.py")
    assert (done.stdout, done.stderr, done.returncode) == ("nemo_gym_sandbox.api\n['i']\n", "", 0)


def test_wrong_usage_says_what_is_right(tmp_path: Path):
    for arguments in (["run"], ["run", "--what"], ["rum", "x"], []):
        done = python(tmp_path, "-m", "nemo_gym_sandbox", *arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "usage: nemo-gym-sandbox" in done.stderr
    assert "did you mean 'run'?" in python(tmp_path, "-m", "nemo_gym_sandbox", "rum").stderr
    for arguments in (["--help"], ["run", "--help"], ["--version"]):
        done = python(tmp_path, "-m", "nemo_gym_sandbox", *arguments)
        assert done.returncode == 0
        assert "nemo-gym-sandbox" in done.stdout


def test_an_example_that_knows_only_the_original_names_runs_unchanged(tmp_path: Path):
    program = Path(__file__).parents[3] / "examples" / "unchanged.py"
    assert "nemo_gym_sandbox" not in re.sub(r'""".*?"""', "", program.read_text(), flags=re.DOTALL)
    done = python(tmp_path, *RUN, str(program))
    assert done.stdout == "right: passed\nwrong: AssertionError\nendless: took too long\n"
    assert done.returncode == 0
