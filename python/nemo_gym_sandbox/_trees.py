"""Whole directories into a sandbox and out of it, over the methods that every provider has.

Files go one by one, several at a time. What only a command can make in the sandbox (links, empty directories, modes) is
done by few commands at the end, and a download begins with one that lists the tree.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import stat
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from nemo_gym_sandbox._listing import command, parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from nemo_gym_sandbox.api import AsyncSandbox

LOGGER = logging.getLogger(__name__)

OutsideLinks = Literal["refuse", "skip", "keep"]

_COMMAND_LENGTH: Final = 64 << 10  # a command may be one argument, of which Linux takes 128 KiB
_LINE_LENGTH: Final = 8 << 10
_FOLDER_MODE: Final = 0o755  # what providers give the parents that they make
_FILE_MODE: Final = 0o644

T = TypeVar("T")


@dataclass
class Tree:
    """What is below a directory, by relative path."""

    files: dict[str, int] = field(default_factory=dict[str, int])
    """Permission bits."""
    folders: dict[str, int] = field(default_factory=dict[str, int])
    """Permission bits; the directory itself is ``""``."""
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Where they lead."""
    special: list[str] = field(default_factory=list[str])
    """Sockets, pipes and devices."""

    def warn_of_special(self, root: str) -> None:
        if self.special:
            LOGGER.warning("left out of %s, as neither files nor directories nor links: %s", root, self.special)


class _Remote:
    """A directory of the sandbox."""

    def __init__(self, path: str) -> None:
        self._below = "" if path == "" else path.rstrip("/") + "/"
        self._itself = path or "."

    def path(self, name: str) -> str:
        """The path of what is below it; ``""`` is the directory itself."""
        return self._below + name if name else self._itself


async def upload(sandbox: AsyncSandbox, local: Path, remote: str, concurrency: int) -> None:
    _check(concurrency)
    tree = await asyncio.to_thread(_scan, local)
    tree.warn_of_special(str(local))
    place = _Remote(remote)

    async def one(name: str) -> None:
        await sandbox.upload(local / name, place.path(name))

    await _each(tree.files, concurrency, one)
    keeps_modes = getattr(type(sandbox.provider), "keeps_file_modes", False) is True
    for script in await asyncio.to_thread(lambda: list(_scripts(tree, place, with_file_modes=not keeps_modes))):
        result = await sandbox.exec(script, timeout_s=None)
        if result.return_code != 0 or result.error_type is not None:
            raise RuntimeError(f"links, empty directories or modes below {remote!r} were not made: {result.stderr}")


def _scan(local: Path) -> Tree:
    tree = Tree(folders={"": _bits(local.stat().st_mode)})
    left = [""]
    while left:
        folder = left.pop()
        with os.scandir(local / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    name.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"the name {name!r} in {str(local)!r} is not UTF-8") from None
                if entry.is_symlink():
                    tree.links[name] = os.readlink(entry.path)
                elif entry.is_dir():
                    tree.folders[name] = _bits(entry.stat().st_mode)
                    left.append(name)
                elif entry.is_file():
                    tree.files[name] = _bits(entry.stat().st_mode)
                else:
                    tree.special.append(name)
    return tree


def _bits(mode: int) -> int:
    return mode & 0o777


def _scripts(tree: Tree, place: _Remote, *, with_file_modes: bool) -> Iterator[str]:
    """The commands that make what uploads do not, each short enough."""
    made = {folder for file in tree.files for folder in _parents(file)}
    lines = [*_with_paths("mkdir -p --", place, (folder for folder in tree.folders if folder not in made))]
    lines += [f"link {shlex.quote(target)} {shlex.quote(place.path(link))}" for link, target in tree.links.items()]
    modes = [(file, mode) for file, mode in tree.files.items() if mode != _FILE_MODE] if with_file_modes else []
    # From the bottom up: a directory may become one that nobody can enter.
    for folder in sorted(tree.folders, key=lambda folder: folder.count("/"), reverse=True):
        if folder and tree.folders[folder] != _FOLDER_MODE:
            modes.append((folder, tree.folders[folder]))
    for mode, entries in groupby(modes, key=lambda entry: entry[1]):
        lines += _with_paths(f"chmod {mode:o} --", place, (name for name, _ in entries))
    # An existing directory would get the link into it.
    head = 'set -e; link() { if [ -d "$2" ] && [ ! -h "$2" ]; then echo "$2 is a directory" >&2; exit 1; fi; ln -sfn -- "$1" "$2"; }'
    return _joined(lines, "\n", head, _COMMAND_LENGTH)


def _with_paths(line: str, place: _Remote, names: Iterable[str]) -> Iterator[str]:
    return _joined((shlex.quote(place.path(name)) for name in names), " ", line, _LINE_LENGTH)


def _joined(pieces: Iterable[str], separator: str, head: str, length: int) -> Iterator[str]:
    """The head with as many pieces after it as fit, again and again."""
    parts, size = [head], len(head)
    for piece in pieces:
        more = len(piece.encode()) + len(separator)
        if len(parts) > 1 and size + more >= length:
            yield separator.join(parts)
            parts, size = [head], len(head)
        parts.append(piece)
        size += more
    if len(parts) > 1:
        yield separator.join(parts)


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition("/")[0]
        yield name


async def download(
    sandbox: AsyncSandbox, remote: str, local: Path, concurrency: int, outside_links: OutsideLinks
) -> None:
    _check(concurrency)
    if outside_links not in ("refuse", "skip", "keep"):
        raise ValueError(f"outside_links must be 'refuse', 'skip' or 'keep', not {outside_links!r}")
    result = await sandbox.exec(command(remote), timeout_s=None)
    if result.return_code != 0 or result.error_type is not None:
        raise RuntimeError(f"the directory {remote!r} of the sandbox was not listed: {result.stderr}")
    if result.truncated or result.stdout is None:
        raise RuntimeError(f"the directory {remote!r} of the sandbox has more entries than its listing may name")
    tree = await asyncio.to_thread(_from_listing, result.stdout, remote)
    tree.warn_of_special(remote)
    _judge_links(tree, outside_links, remote)
    await asyncio.to_thread(_make_folders, tree, local)
    place = _Remote(remote)

    async def one(name: str) -> None:
        await sandbox.download(place.path(name), local / name)

    await _each(tree.files, concurrency, one)
    await asyncio.to_thread(_finish_local, tree, local)


def _from_listing(text: str, remote: str) -> Tree:
    """The tree that a sandbox says it has. Only names that lead below the directory are believed."""
    tree = Tree()
    for name, mode, target in parse(text, remote):
        if stat.S_ISDIR(mode):
            tree.folders[name] = _bits(mode)
        elif stat.S_ISREG(mode):
            tree.files[name] = _bits(mode)
        elif stat.S_ISLNK(mode) and target is not None:
            tree.links[name] = target
        else:
            tree.special.append(name)
    if "" not in tree.folders:
        raise RuntimeError(f"the listing of {remote!r} is empty")
    for name in (*tree.files, *tree.links, *tree.folders):
        missing = [parent for parent in _parents(name) if parent not in tree.folders]
        if missing:
            raise RuntimeError(f"the listing of {remote!r} has {name!r}, but not the directory {missing[0]!r}")
    return tree


def _judge_links(tree: Tree, outside_links: OutsideLinks, remote: str) -> None:
    outside = [link for link, target in tree.links.items() if not _stays_inside(link, target)]
    if not outside or outside_links == "keep":
        return
    if outside_links == "refuse":
        named = ", ".join(f"{link!r} -> {tree.links[link]!r}" for link in outside[:5])
        raise RuntimeError(
            f"links below {remote!r} lead out of it, where they would mean files of this machine: {named}; "
            "choose outside_links='skip' or 'keep'"
        )
    LOGGER.warning("left out of %s, as links that lead out of it: %s", remote, outside)
    for link in outside:
        del tree.links[link]


def _stays_inside(link: str, target: str) -> bool:
    """Whether a link surely leads below the directory: upwards only at its beginning, and not too far.

    A later ``..`` may be one of another link's target.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return not target.startswith("/") and ".." not in parts[ups:] and ups <= link.count("/")


def _make_folders(tree: Tree, local: Path) -> None:
    """Make the directories. What is there already is used, unless it is a link, which could lead anywhere."""
    local.mkdir(parents=True, exist_ok=True)
    for folder in sorted(tree.folders):
        path = local / folder
        if folder and path.is_symlink():
            raise NotADirectoryError(f"{str(path)!r} is a link: a directory is not downloaded through it")
        path.mkdir(exist_ok=True)
        mode = _bits(path.stat().st_mode)
        if folder and mode & stat.S_IRWXU != stat.S_IRWXU:
            path.chmod(mode | stat.S_IRWXU)
    for name in (*tree.files, *tree.links):
        path = local / name
        if path.is_symlink():
            path.unlink()  # a file must not be written through it


def _finish_local(tree: Tree, local: Path) -> None:
    for file, mode in tree.files.items():
        (local / file).chmod(mode)
    for link, target in tree.links.items():
        path = local / link
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    for folder in sorted(tree.folders, key=lambda folder: folder.count("/"), reverse=True):
        if folder:
            (local / folder).chmod(tree.folders[folder] | stat.S_IRWXU)


def _check(concurrency: int) -> None:
    given: Any = concurrency
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"concurrency must be a whole number of at least 1, not {given!r}")


async def _each(items: Iterable[T], limit: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Do the work for each item, at most ``limit`` at a time. The first failure ends the rest and is raised."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(limit):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
