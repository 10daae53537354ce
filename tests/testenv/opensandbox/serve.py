#!/usr/bin/env python3
"""Runs the public OpenSandbox server with our daemon in its sandboxes, for tests and benchmarks.

    serve.py            starts it, prints one line of JSON about it, and ends it when its own input ends
    serve.py --python   only prepares the environment, and prints the path of its Python

The line has ``url``, ``api_key``, ``image`` (with bash), ``small_image`` (without), ``volumes`` (a folder on this
machine that sandboxes may mount), ``python`` (an interpreter that has the official SDK), ``mark`` (an environment
variable, as NAME=VALUE, that all of this server's sandboxes have) and ``log``.

Whoever starts this keeps the other end of its input. When that is closed, also because its holder was killed, the
server ends and every sandbox that it made is removed. What a killed run of this program itself left is removed by the
next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = ROOT / "build" / "opensandbox"
REQUIREMENTS = HERE / "requirements.txt"

SMALL_IMAGE = "lab/busybox:1"
BASH_IMAGE = "lab/bash:1"
DAEMON_IMAGE = "lab/execd"
"""Its tag is the owner of the server that takes the daemon from it."""

MARK = "NGS_TEST_SERVER"
"""The environment variable by which a server's sandboxes are found again. Its value names the process that owns them."""
FOLDER = "ngs-opensandbox-"

CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
api_key = "{key}"
max_sandbox_timeout_seconds = 86400
timeout_graceful_shutdown = 1

[log]
level = "INFO"

[runtime]
type = "docker"
execd_image = "{daemon_image}"

[storage]
allowed_host_paths = ["{folder}/volumes"]

[store]
type = "sqlite"
path = "{folder}/store.db"

[docker]
network_mode = "bridge"
publish_host = "127.0.0.1"
sandbox_env = {{ {mark} = "{owner}" }}
"""


def run(*argv: str | Path, cwd: Path = ROOT) -> str:
    """Run a program to its end; gives its output. Raises SystemExit with what it said when it fails."""
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"serve.py: {' '.join(map(str, argv))} ended with {done.returncode}:\n{done.stderr or done.stdout}"
        )
    return done.stdout


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep other runs of this program out."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment() -> Path:
    """The Python that has the server and the SDK, made on first use and whenever what it is made from has changed."""
    made_from = f"{sys.version}\n{CACHE}\n{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()}"
    venv, note = CACHE / "venv", CACHE / "venv" / "made-from"
    if not note.exists() or note.read_text() != made_from:
        shutil.rmtree(venv, ignore_errors=True)
        run(sys.executable, "-m", "venv", venv)
        # The list is complete, so nothing has to be found out; and only a part of it is ever imported.
        quick = ["-q", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary", ":all:"]
        run(venv / "bin" / "python", "-m", "pip", "install", *quick, "-r", REQUIREMENTS)
        note.write_text(made_from)
    return venv / "bin" / "python"


def images() -> None:
    """Make what is missing of the images. Each server has a daemon's image of its own: it holds the agent as it is now."""
    if not run("docker", "images", "-q", SMALL_IMAGE).strip():
        run(ROOT / "tests" / "testenv" / "make-image.sh", SMALL_IMAGE)
    if not run("docker", "images", "-q", BASH_IMAGE).strip():
        run(HERE / "bash-image.sh", BASH_IMAGE, SMALL_IMAGE)
    run(ROOT / "tests" / "testenv" / "execd-image.sh", f"{DAEMON_IMAGE}:{owner()}")


def owner() -> str:
    """This process, told apart from all others that have had or will have its number."""
    return f"{os.getpid()}-{started(os.getpid())}"


def started(pid: int) -> str:
    """When a process began, in ticks since the machine did; "" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_gone(name: str) -> bool:
    pid, _, began = name.partition("-")
    return not pid.isdecimal() or started(int(pid)) != began


def marked(of: str | None, kind: str, names: list[str]) -> list[str]:
    """Which of these containers or images belong to one owner, or with None to owners that are gone."""
    found: list[str] = []
    for name in names:
        inspect = ["docker", kind, "inspect", "--format", "{{json .Config.Env}}", name]
        shown = subprocess.run(inspect, capture_output=True, text=True, check=False)
        if shown.returncode != 0:  # it has gone meanwhile
            continue
        for variable in json.loads(shown.stdout) or []:
            name_of, _, value = variable.partition("=")
            if name_of == MARK and (is_gone(value) if of is None else value == of):
                found.append(name)
    return found


def remove(of: str | None) -> None:
    """Remove the sandboxes, the snapshots and the daemon's image of one owner, or with None of all owners that are gone."""
    listed = run("docker", "ps", "-aq", "--no-trunc", "--filter", "label=opensandbox.io/id").split()
    # What goes by itself meanwhile is an error here, and all right.
    if containers := marked(of, "container", listed):
        subprocess.run(["docker", "rm", "-f", "-v", *containers], capture_output=True, check=False)
    listed = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "opensandbox-snapshots").split()
    if snapshots := marked(of, "image", listed):
        subprocess.run(["docker", "rmi", *snapshots], capture_output=True, check=False)
    for tag in run("docker", "images", "--format", "{{.Tag}}", DAEMON_IMAGE).split():
        if is_gone(tag) if of is None else tag == of:
            remove_daemon_image(f"{DAEMON_IMAGE}:{tag}")


def remove_daemon_image(image: str) -> None:
    """Remove it, with the containers in which a server that was ended was just copying the daemon."""
    listed = run("docker", "ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Image}}").splitlines()
    if copying := [line.split()[0] for line in listed if line.split()[1] == image]:
        subprocess.run(["docker", "rm", "-f", "-v", *copying], capture_output=True, check=False)
    subprocess.run(["docker", "rmi", image], capture_output=True, check=False)


def sweep() -> None:
    """Remove what runs of this program left that were killed."""
    remove(None)
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        name = folder.name.removeprefix(FOLDER)
        if is_gone("-".join(name.split("-")[:2])):
            shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent has died."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)


class Server:
    """The server's process, with its files in a folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.key = secrets.token_hex(16)
        self.log = folder / "server.log"
        self._python, self._folder = python, folder
        (folder / "volumes").mkdir()
        (folder / "home").mkdir()

    def start(self) -> None:
        """Start it. A port that somebody else took meanwhile is given up for another."""
        for _ in range(5):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            config = self._folder / "config.toml"
            config.write_text(
                CONFIG.format(
                    port=port,
                    key=self.key,
                    daemon_image=f"{DAEMON_IMAGE}:{owner()}",
                    folder=self._folder,
                    mark=MARK,
                    owner=owner(),
                )
            )
            # Its state is below HOME, and nobody's variables are to change what it does.
            variables = {"HOME": str(self._folder / "home"), "PATH": os.environ["PATH"], "NO_COLOR": "1"}
            variables |= {n: v for n, v in os.environ.items() if n.startswith("DOCKER_")}
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [self._python.parent / "opensandbox-server", "--config", config],
                    env=variables,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_parent,
                )
            if self._healthy():
                return
            self.stop()
        raise SystemExit(f"serve.py: the server did not come up:\n{self.log.read_text()[-3000:]}")

    def _healthy(self) -> bool:
        until = time.monotonic() + 60
        while time.monotonic() < until and self._process.poll() is None:
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer,
            ):
                return answer.status == 200
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        """End it, at once where it does not end soon: its sandboxes are removed without its help."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ended(self) -> int:
        """A descriptor that becomes readable when the server has ended."""
        return os.pidfd_open(self._process.pid)


def tell(told: TextIO, line: str) -> None:
    told.write(line + "\n")
    told.flush()


def serve(told: TextIO) -> int:
    # Interrupts and signals are for those who run the tests; this ends when they have.
    if os.getpid() != os.getpgid(0):
        os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with alone():
        sweep()
        python = environment()
        images()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{owner()}-"))
    server = Server(python, folder)
    try:
        server.start()
        about = {
            "url": server.url,
            "api_key": server.key,
            "image": BASH_IMAGE,
            "small_image": SMALL_IMAGE,
            "volumes": str(folder / "volumes"),
            "python": str(python),
            "mark": f"{MARK}={owner()}",
            "log": str(server.log),
        }
        tell(told, json.dumps(about))
        ended = server.ended()
        if ended in select.select([sys.stdin, ended], [], [])[0]:
            sys.stderr.write(f"serve.py: the server ended by itself:\n{server.log.read_text()[-3000:]}\n")
            return 1
    finally:
        server.stop()
        remove(owner())
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def main() -> int:
    # Output of the programs that this runs must not come between.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1:] == ["--python"]:
        with alone():
            tell(told, str(environment()))
        return 0
    return serve(told)


if __name__ == "__main__":
    raise SystemExit(main())
