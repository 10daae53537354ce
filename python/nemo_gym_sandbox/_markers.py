"""How one command is typed into a live shell, and how its output is found again among echo and prompts.

What is typed is a brace group: a start marker, the command, an end marker with the status. Both markers are random and
are printed from two quoted halves, so that the shell's echo of what was typed never contains them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# Terminals in line mode keep 4,096 bytes of a line and drop the rest, busybox's line editor keeps 1,023. Interactive
# shells also take control characters as editing keys, and may strip the eighth bit where no locale is set.
_MAX_LINE = 1000
_PIECE = 800
_VARIABLE = "_ngs_command"


@dataclass(frozen=True)
class Markers:
    """The two random halves of one command's markers."""

    first: str
    second: str

    @classmethod
    def new(cls) -> Markers:
        """Markers that nothing else prints."""
        return cls(f"NGS{os.urandom(6).hex()}", os.urandom(6).hex())

    @property
    def start(self) -> bytes:
        """What stands alone on the line before the output."""
        return f"{self.first}{self.second}S".encode()

    @property
    def end(self) -> bytes:
        """What stands between the output and the status."""
        return f"{self.first}{self.second}:".encode()


def typed(command: str, markers: Markers) -> bytes:
    """What to write to the shell for one command.

    A command that a terminal would not take as it is, because of a long line, a control character or one that is not
    ASCII, is put together in the shell from printable pieces. Raises ValueError for a command with a NUL in it.
    """
    if "\0" in command:
        raise ValueError("a command cannot contain a NUL character")
    lines = [f"{{ printf '%s%s\\n' '{markers.first}' '{markers.second}S'"]
    if _plain(command):
        lines.append(command)
    else:
        lines += _assembled(command)
    lines.append(f"printf '%s%s:%s\\n' '{markers.first}' '{markers.second}' \"$?\"")
    lines.append("} </dev/null")
    return ("\n".join(lines) + "\n").encode()


def _plain(command: str) -> bool:
    # Shells take "!" as a reference to their history, and a last backslash would swallow the status line.
    if not command.isascii() or "!" in command or command.endswith("\\"):
        return False
    return all(len(line) < _MAX_LINE and line.isprintable() for line in command.split("\n"))


def _assembled(command: str) -> list[str]:
    # Two newlines: after one that a backslash swallows, bash would go on with the next line that is typed.
    encoded = [
        _printf(byte) for byte in f"unset {_VARIABLE} {_VARIABLE}_\n{command}\n\n".encode("utf-8", "surrogateescape")
    ]
    lines = [f"{_VARIABLE}="]
    piece = ""
    for index, character in enumerate(encoded):
        piece += character
        if len(piece) >= _PIECE or index == len(encoded) - 1:
            # The dot keeps the newlines at a piece's end, which a substitution would drop.
            lines.append(f"{_VARIABLE}_=$(printf '%b.' '{piece}'); {_VARIABLE}=${_VARIABLE}${{{_VARIABLE}_%.}}")
            piece = ""
    lines.append(f'eval "${_VARIABLE}"')
    return lines


def _printf(byte: int) -> str:
    character = chr(byte)
    return character if " " <= character <= "~" and character not in "'\\" else f"\\0{byte:03o}"


class MarkedOutput:
    """Takes a session's output in any pieces and finds the part that belongs to one command."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._chunks = bytearray()
        self._searched = 0
        self._begin: int | None = None
        self._alone_at: int | None = None  # where an end marker is that no start came before
        self._status_at: int | None = None
        self._output_end = 0

    def feed(self, data: bytes) -> None:
        """Add a chunk."""
        self._chunks += data
        if self._begin is None:
            self._find_start()
        if self._begin is not None and self._status_at is None:
            self._find_end()

    def _find(self, marker: bytes) -> int:
        at = self._chunks.find(marker, self._searched)
        if at < 0:  # it may be split over chunks
            self._searched = max(self._searched, len(self._chunks) - len(marker) + 1)
        return at

    def _find_start(self) -> None:
        if self._alone_at is None:
            alone = self._chunks.find(self._markers.end, self._searched)
            self._alone_at = alone if alone >= 0 else None
        at = self._find(self._markers.start)  # as long as the other one
        if at < 0:
            return
        newline = self._chunks.find(b"\n", at)
        if newline < 0:
            self._searched = at
            return
        del self._chunks[: newline + 1]  # echo and prompts
        self._begin = self._searched = 0
        self._alone_at = None

    def _find_end(self) -> None:
        at = self._find(self._markers.end)
        if at >= 0:
            self._output_end, self._status_at = at, at + len(self._markers.end)

    @property
    def ended(self) -> bool:
        """Whether the end marker was seen; the status may still be incomplete."""
        return self._status_at is not None

    @property
    def complete(self) -> bool:
        """Whether the whole line with the status was seen."""
        if self._status_at is None:
            return False
        tail = self._chunks[self._status_at :]
        return bool(tail) and not tail.isdigit()

    @property
    def has_status(self) -> bool:
        """Whether at least part of the status was seen, or of one that no start came before: it counts when nothing follows.

        A shell that finds a mistake in a group drops what it has read of it and goes on with the next line. So the end
        marker comes, with the status of the mistake, and the start marker never does.
        """
        at = self._status_from()
        return at is not None and len(self._chunks) > at

    def _status_from(self) -> int | None:
        return self._status_at if self._alone_at is None else self._alone_at + len(self._markers.end)

    @property
    def output(self) -> bytes:
        """What the command printed so far."""
        if self._alone_at is not None:
            return self._said_of_mistake(self._alone_at)
        if self._begin is None:
            return b""
        return bytes(self._chunks[: self._output_end] if self.ended else self._chunks)

    def _said_of_mistake(self, end: int) -> bytes:
        """It is among echo and prompts, of which only the markers' own lines can be told apart."""
        ours, starts = self._markers.first.encode(), f"{self._markers.second}S'".encode()
        said: list[bytes] = []
        for line in bytes(self._chunks[:end]).splitlines(keepends=True):
            if ours not in line:
                said.append(line)
            elif starts in line:  # what comes before is older than the command
                said.clear()
        return b"".join(said)

    @property
    def status(self) -> int | None:
        """The exit status; None when what was printed in its place is not a number."""
        at = self._status_from()
        if at is None:
            return None
        tail = bytes(self._chunks[at:])
        digits = tail.replace(b"\r", b"\n").partition(b"\n")[0]
        return int(digits) if digits.isdigit() else None
