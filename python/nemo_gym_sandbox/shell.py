"""Work in a new sandbox from this terminal: ``python -m nemo_gym_sandbox.shell --config FILE``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from nemo_gym_sandbox._terminal import Detached, LocalTerminal, Terminated, join
from nemo_gym_sandbox.api import AsyncSandbox
from nemo_gym_sandbox.config import RESERVED_KEYS, resolve_provider_config, resolve_provider_metadata
from nemo_gym_sandbox.providers.base import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from nemo_gym_sandbox.providers.base import SandboxPtySession

__all__ = ["attach", "main"]

DEFAULT_IMAGE: Final = "docker.io/library/python:3.12-slim"
TTL_S: Final = 1800
READY_TIMEOUT_S: Final = 1200
WORKDIR: Final = "/tmp"  # every image has it, and everybody may write there
PASSED_ON: Final = ("TERM", "COLORTERM")
"""Variables that tell programs what this terminal can do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Open a shell in a new sandbox, which ends with it; gives the shell's exit status.

    Otherwise 2 for wrong usage or without a terminal, 1 for a failure, 128+n for an end by signal n.
    """
    parser = argparse.ArgumentParser(
        prog="nemo-gym-sandbox shell", description="Open a shell in a new sandbox, which ends with it."
    )
    _provider_options(parser)
    parser.add_argument("--image", help=f"image of the sandbox (default: {DEFAULT_IMAGE}, none for local)")
    parser.add_argument("--sandbox", metavar="ID", help="use this running sandbox, and let it live on")
    parser.add_argument(
        "--keep", action="store_true", help="let the sandbox live on, and say how to come back to its shell"
    )
    parser.add_argument("--command", help="run this instead of a shell")
    _key_option(parser, None)
    given = parser.parse_args(arguments)
    return _run(parser, lambda: _shell(given), "sandbox shell failed")


def attach(arguments: Sequence[str] | None = None) -> int:
    """Attach this terminal to a session of a running sandbox; exit status as of :func:`main`, 0 after leaving it."""
    parser = argparse.ArgumentParser(
        prog="nemo-gym-sandbox attach",
        description="Attach this terminal to a session of a running sandbox. Closing the terminal leaves the session.",
    )
    parser.add_argument("session", metavar="SANDBOX/SESSION", help="ids of the sandbox and of its session")
    _provider_options(parser)
    parser.add_argument("--no-takeover", action="store_true", help="fail when somebody else is attached")
    parser.add_argument("--since", type=int, help="show retained output from this byte offset on (default: all of it)")
    _key_option(parser, "ctrl-]")
    given = parser.parse_args(arguments)
    if not all(given.session.rpartition("/")):
        parser.error(f"{given.session!r} is not SANDBOX/SESSION: the id of a sandbox and that of one of its sessions")
    return _run(parser, lambda: _attach(given), "sandbox attach failed")


# ---------------------------------------------------------------- options


def _provider_options(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="FILE", type=Path, help="YAML or JSON file with a provider block")
    source.add_argument("--provider", default="docker", help="provider with its defaults (default: docker)")
    parser.add_argument("--block", metavar="NAME", help="which block of the file, when it has several")


def _key_option(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--detach-key",
        metavar="KEY",
        type=_key,
        default=None if default is None else _key(default),
        help=f'key that leaves the session, such as "ctrl-]", or "none" (default: {default or "none"})',
    )


def _key(text: str) -> bytes | None:
    if text == "none":
        return None
    name = text.lower()
    if name.startswith("ctrl-") and len(name) == 6 and "@" <= name[5].upper() <= "_":
        return bytes([ord(name[5].upper()) & 0x1F])
    raise argparse.ArgumentTypeError(f"{text!r} is no key; give one like ctrl-] or ctrl-a, or none")


def _block(given: argparse.Namespace) -> Mapping[str, Any]:
    """The provider block that the options name."""
    if given.config is None:
        return {given.provider: {}}
    text = given.config.read_text()
    if given.config.suffix == ".json":
        content: Any = json.loads(text)
    else:
        try:
            import yaml
        except ImportError:
            raise RuntimeError(
                "a YAML file needs PyYAML: pip install 'nemo-gym-sandbox[compose]', or give a .json file"
            ) from None
        content = yaml.safe_load(text)
    if not isinstance(content, dict):
        raise ValueError(f"{given.config} holds no mapping")
    blocks = cast("dict[str, Any]", content)
    if given.block is not None:
        return blocks[given.block] if isinstance(blocks.get(given.block), dict) else _named(given.block, blocks)
    if "sandbox" in blocks:
        return blocks["sandbox"]
    nested = [value for value in blocks.values() if _is_block(value)]
    return nested[0] if len(nested) == 1 and not _is_provider(blocks) else blocks


def _named(name: str, blocks: Mapping[str, Any]) -> Mapping[str, Any]:
    return resolve_provider_config(name, blocks)  # raises, and lists those that there are


def _is_provider(blocks: Mapping[str, Any]) -> bool:
    from nemo_gym_sandbox.providers.registry import list_providers

    names = [name for name in blocks if name not in RESERVED_KEYS]
    return len(names) == 1 and names[0] in list_providers()


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and _is_provider(cast("dict[str, Any]", value))


# ---------------------------------------------------------------- the work


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _run(parser: argparse.ArgumentParser, work: Callable[[], Coroutine[Any, Any, int]], failed: str) -> int:
    if not LocalTerminal.available():
        _say(f"{parser.prog}: standard input and output must be a terminal")
        return 2
    try:
        return asyncio.run(_until_signal(work()))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated as end:
        return 128 + end.number
    except Detached:
        _say("[detached]")
        return 0
    except Exception as error:
        _say(f"{failed}: {error or type(error).__name__}")
        return 1


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end, or until the process is asked to end; then everything is undone first."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if came:
            raise Terminated(came[0]) from None
        raise


async def _shell(given: argparse.Namespace) -> int:
    block = _block(given)
    provider = resolve_provider_config(block)
    if given.sandbox is not None:
        sandbox = await AsyncSandbox.connect({"sandbox_id": given.sandbox}, provider=provider)
        leave = sandbox.disconnect
    else:
        image = given.image or (None if "local" in provider else DEFAULT_IMAGE)
        metadata = {"purpose": "interactive-shell", **resolve_provider_metadata(block)}
        spec = SandboxSpec(
            image=image, ttl_s=TTL_S, ready_timeout_s=READY_TIMEOUT_S, workdir=WORKDIR, metadata=metadata
        )
        sandbox = AsyncSandbox(provider, spec)
        leave = sandbox.stop
    kept = False
    try:
        if given.sandbox is None:
            await sandbox.start()
        rows, cols = LocalTerminal.size()
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            session = await sandbox.pty.create(given.command, env=env, rows=rows, cols=cols)
        except NotImplementedError as error:
            raise RuntimeError(f"this sandbox has no interactive PTY: {error}") from error
        if not given.keep:
            async with session:
                return await _joined(session, given.detach_key)
        sandbox_id = (await sandbox.serialize())["sandbox_id"]
        kept = True
        try:
            return await _joined(session, given.detach_key)
        finally:
            source = f"--config {given.config}" if given.config is not None else f"--provider {given.provider}"
            way = f"shell {source} --sandbox {sandbox_id}"
            if not session.closed:
                way = f"attach {source} {sandbox_id}/{session.session_id}"
            _say(f"come back with: nemo-gym-sandbox {way}")
    finally:
        if kept:
            await sandbox.provider.aclose()
        else:
            await leave()


async def _attach(given: argparse.Namespace) -> int:
    provider = resolve_provider_config(_block(given))
    sandbox_id, _, session_id = given.session.rpartition("/")
    sandbox = await AsyncSandbox.connect({"sandbox_id": sandbox_id}, provider=provider)
    try:
        session = await sandbox.pty.attach(session_id, takeover=not given.no_takeover, since=given.since)
        async with session:
            if session.mode == "pty":
                await session.resize(*LocalTerminal.size())
            return await _joined(session, given.detach_key)
    finally:
        await sandbox.disconnect()


async def _joined(session: SandboxPtySession, detach_key: bytes | None) -> int:
    with LocalTerminal() as terminal:
        return await join(session, terminal, detach_key=detach_key)


if __name__ == "__main__":
    sys.exit(main())
