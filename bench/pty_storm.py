"""Terminals that change hands all the time while their programs print, and not a byte may get lost or come twice.

    python -m bench.pty_storm [--provider local docker] [--moves N] [--sessions N] [--seed N]

Each session prints a MiB of numbered records a second. At random moments, at most half a second apart, it is detached and
attached again, here or by a second client, for at most half a second; or a client takes it over from the other; or a socket of
this process is cut. In the end all that was read is compared with what the program printed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import hashlib
import os
import random
import socket
import stat
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from bench import measure
from nemo_gym_sandbox import AsyncSandbox, SandboxPtyError, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_gym_sandbox import SandboxPtySession

RECORD = 64
STEP = 1024  # records that are printed at once
GAP_S = 0.5
EVICTED_S = 0.1  # within which a holder has to hear that the session was taken from it
PATIENCE_S = 60
ATTEMPTS = 20

# The pause makes it a MiB a second; starting the commands of it takes some time too.
PRINT = """stty -onlcr 2>/dev/null
exec awk 'BEGIN {
    do {
        for (i = 0; i < %d; i++) printf "%%063d\\n", n++
        fflush()
    } while (system("sleep 0.055; test ! -e %s") == 0)
    print n > "%s"
}'"""


class Sockets:
    """The sockets of this process to cut: those to a sandbox's agent that were opened since this was made."""

    def __init__(self) -> None:
        self._old = {inode for _, inode in self._all()}

    @staticmethod
    def _all() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/self/fd/{name}")
                if stat.S_ISSOCK(about.st_mode):
                    found.append((int(name), about.st_ino))
        return found

    def cut(self, randomly: random.Random) -> bool:
        """Break one connection as if it got lost; false when there is none."""
        new = [(number, inode) for number, inode in sorted(self._all()) if inode not in self._old]
        randomly.shuffle(new)
        for number, inode in new:
            try:
                copy = os.dup(number)
            except OSError:
                continue
            if os.fstat(copy).st_ino != inode:  # the number is that of something else by now
                os.close(copy)
                continue
            try:
                one = socket.socket(fileno=copy)
            except OSError:  # only the path of one
                os.close(copy)
                continue
            with one, contextlib.suppress(OSError):
                if one.family == socket.AF_UNIX:
                    one.shutdown(socket.SHUT_RDWR)
                    return True
        return False


class Moved:
    """One session on its way through many hands."""

    def __init__(self, number: int, clients: tuple[AsyncSandbox, AsyncSandbox], sockets: Sockets, seed: str) -> None:
        self.name = f"session {number}"
        self.moves: collections.Counter[str] = collections.Counter()
        self.evictions: list[float] = []
        self.got = 0
        self._pipes = number % 2 == 1
        self._clients = clients
        self._sockets = sockets
        self._random = random.Random(seed)
        self._hash = hashlib.sha256()
        self._stop, self._count = f"/tmp/stop-{number}", f"/tmp/count-{number}"
        self._over = False

    async def run(self, moves: int) -> None:
        """Make the moves, read to the end, and compare."""
        self._owner = await self._clients[0].pty.create(PRINT % (STEP, self._stop, self._count), pty=not self._pipes)
        self._session: SandboxPtySession = self._owner
        began = time.monotonic()
        for _ in range(moves):
            await self._read(self._random.uniform(0, GAP_S))
            kind = self._random.choice((self._detach, self._hand_over, self._take_over, self._cut))
            self.moves[kind.__name__.strip("_")] += 1
            await kind()
        took = time.monotonic() - began
        await self._command(f"touch {self._stop}")
        async with asyncio.timeout(PATIENCE_S):
            while not self._over:
                await self._read(GAP_S)
            code = await self._session.wait_exit()
        printed = int(await self._command(f"cat {self._count}"))
        wanted = hashlib.sha256()
        for at in range(0, printed, STEP):
            wanted.update(b"".join(b"%063d\n" % number for number in range(at, at + STEP)))
        await self._owner.close()
        print(
            f"    {self.name}, {'pipes' if self._pipes else 'terminal'}: {sum(self.moves.values())} moves in {took:.0f} s; "
            f"{printed * RECORD} bytes printed, {self.got} read, SHA-256 {self._hash.hexdigest()[:16]}",
            flush=True,
        )
        if code != 0 or self.got != printed * RECORD or self._hash.digest() != wanted.digest():
            raise RuntimeError(
                f"{self.name}: {self.got - printed * RECORD:+} bytes, exit code {code}, "
                f"SHA-256 {'equal' if self._hash.digest() == wanted.digest() else 'different'}"
            )

    async def _command(self, command: str) -> str:
        """Run it in the sandbox; again when its own connection was cut by somebody else's move."""
        result = await self._clients[0].exec(command)
        for _ in range(ATTEMPTS):
            if result.return_code == 0:
                return result.stdout or ""
            result = await self._clients[0].exec(command)
        raise RuntimeError(f"{self.name}: {command!r} failed: {result}")

    async def _read(self, seconds: float) -> None:
        """Read for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    chunk = await self._session.read()
                    self._hash.update(chunk)
                    self.got += len(chunk)
                    if not chunk:
                        self._over = True
                        return

    async def _attach(self, takeover: bool) -> SandboxPtySession:
        client = self._random.choice(self._clients)
        for attempt in range(ATTEMPTS):
            try:
                session = await client.pty.attach(self._owner.session_id, takeover=takeover, since=self.got)
            except SandboxPtyError:
                # The connection that was being made may have been cut: then the server still holds it, for a moment.
                takeover = True
                self.moves["failed attach"] += 1
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            if session.replay_offset not in (None, self.got):  # pyright: ignore[reportAttributeAccessIssue]
                raise RuntimeError(f"{self.name}: the output from {self.got} on is not retained any more")
            return session
        raise AssertionError

    async def _detach(self) -> None:
        await self._session.detach()  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.sleep(self._random.uniform(0, GAP_S))
        await self._session.reattach()  # pyright: ignore[reportAttributeAccessIssue]

    async def _hand_over(self) -> None:
        await self._session.detach()  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.sleep(self._random.uniform(0, GAP_S))
        await self._use(await self._attach(takeover=False))

    async def _take_over(self) -> None:
        old = self._session
        session = await self._attach(takeover=True)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await old.read():
                    pass  # the new one gives it too
        except SandboxPtyError:
            self.evictions.append(time.perf_counter() - began)
        else:
            raise RuntimeError(f"{self.name}: the old holder saw an end instead of the takeover")
        await self._use(session)

    async def _use(self, session: SandboxPtySession) -> None:
        old, self._session = self._session, session
        if old is not self._owner:  # which would take the session along
            await old.close()

    async def _cut(self) -> None:
        if not self._sockets.cut(self._random):
            self.moves["nothing to cut"] += 1


async def storm(provider: str, image: str, sessions: int, moves: int, seed: int) -> None:
    """All sessions at once; RuntimeError when a byte got lost or came twice."""
    block = {provider: {}}
    async with AsyncSandbox(block, SandboxSpec(image=None if provider == "local" else image)) as sandbox:
        await sandbox.start()
        second = await AsyncSandbox.connect(await sandbox.serialize(), provider=block)
        try:
            sockets = Sockets()
            share = [moves // sessions + (number < moves % sessions) for number in range(sessions)]
            all_of_them = [
                Moved(number, (sandbox, second), sockets, f"{seed}/{provider}/{number}") for number in range(sessions)
            ]
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for one, part in zip(all_of_them, share, strict=True):
                    group.create_task(one.run(part))
            took = time.monotonic() - began
        finally:
            await second.disconnect()
    made = sum((one.moves for one in all_of_them), collections.Counter[str]())
    late = [wait for one in all_of_them for wait in one.evictions]
    print("    " + ", ".join(f"{count} x {kind.replace('_', ' ')}" for kind, count in sorted(made.items())))
    print(f"    {sum(one.got for one in all_of_them) / took / sessions / (1 << 20):.2f} MiB/s for each session")
    if late:
        print(
            f"    an old holder heard of a takeover within {measure.percentile(late, 0.5) * 1e3:.1f} ms (median), "
            f"{max(late) * 1e3:.1f} ms (longest); {sum(wait > EVICTED_S for wait in late)} of {len(late)} after more than "
            f"{EVICTED_S * 1e3:.0f} ms"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run, and say what came of it: exit status 1 when bytes got lost or came twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.pty_storm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", nargs="+", default=["local", "docker"], choices=["local", "docker"])
    parser.add_argument("--image", default="lab/busybox:1")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--moves", type=int, default=500, help="of all sessions together (default: 500)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args(argv)
    print(measure.machine())
    status = 0
    for provider in given.provider:
        print(f"{provider}: {given.sessions} sessions, {given.moves} moves, seed {given.seed}", flush=True)
        try:
            asyncio.run(storm(provider, given.image, given.sessions, given.moves, given.seed))
        except BaseExceptionGroup as group:
            for error in group.exceptions:
                print("    FAILED " + "".join(traceback.format_exception(error)))
            status = 1
        else:
            print("    0 bytes lost, 0 doubled")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
