"""What is under test, and how it differs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from nemo_gym_sandbox.providers.base import SandboxProvider, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def _spec() -> SandboxSpec:
    return SandboxSpec()


@dataclass(frozen=True)
class Backend:
    """A provider under test. The defaults after ``leftovers`` describe a backend that can do everything."""

    name: str
    """What it is called in results."""
    provider: Callable[[], SandboxProvider]
    """Makes a provider. Called more than once: some cases stand for several processes."""
    spec: SandboxSpec = field(default_factory=_spec)
    """What sandboxes are made from. Its image has a POSIX shell and the usual small programs (busybox is enough), and /proc."""
    leftovers: Callable[[], Iterable[str]] | None = None
    """Lists by name everything of the backend that sandboxes consist of: containers, folders, processes. None means that
    there is no way to tell."""

    no_users: bool = field(default=False, kw_only=True)
    """Commands run as one user only, asking for another is refused."""
    no_stdin: bool = field(default=False, kw_only=True)
    """Commands cannot be given input."""
    no_streaming: bool = field(default=False, kw_only=True)
    """Output arrives only when the command has ended."""
    no_back_pressure: bool = field(default=False, kw_only=True)
    """A command may go on while its output is not taken."""
    as_lines: bool = field(default=False, kw_only=True)
    """Output is told line by line: how lines ended, and whether the last one did, is not told; stderr gets a line more
    when the code is not 0."""
    merged_output: bool = field(default=False, kw_only=True)
    """stdout holds what was written to stderr too, and stderr holds what the backend says, if anything."""
    no_home: bool = field(default=False, kw_only=True)
    """A user who is given by number keeps another one's home."""
    late_users: bool = field(default=False, kw_only=True)
    """An unknown user makes the command fail with a code, instead of being refused."""
    no_terminal_signal_codes: bool = field(default=False, kw_only=True)
    """Of a session's death by a signal no number is told."""
    no_long_commands: bool = field(default=False, kw_only=True)
    """A command is at most as long as one argument may be."""
    no_tree_kill: bool = field(default=False, kw_only=True)
    """On timeout and cancel only the command itself is sure to end, not what has left its session."""
    no_kill_on_close: bool = field(default=False, kw_only=True)
    """What has left its command's session may live on when the sandbox is closed."""
    no_signal_codes: bool = field(default=False, kw_only=True)
    """Death by a signal is not always told as 128 and its number."""
    no_clean_environment: bool = field(default=False, kw_only=True)
    """Commands see this process's environment."""
    no_pause: bool = field(default=False, kw_only=True)
    """Sandboxes cannot be paused."""
    no_connect: bool = field(default=False, kw_only=True)
    """Sandboxes cannot be taken up by another process."""
    no_endpoints: bool = field(default=False, kw_only=True)
    """Ports cannot be reached from here."""
    no_ttl: bool = field(default=False, kw_only=True)
    """The backend does not end sandboxes by itself."""
    no_entrypoint: bool = field(default=False, kw_only=True)
    """The spec's entrypoint is not run, or its end is not the sandbox's."""
    no_terminals: bool = field(default=False, kw_only=True)
    """There are no interactive sessions."""
    no_attach: bool = field(default=False, kw_only=True)
    """Sessions cannot be attached to by others."""
    no_detached: bool = field(default=False, kw_only=True)
    """Sessions do not run commands detached."""
    remote_processes: bool = field(default=False, kw_only=True)
    """This machine's /proc does not show the processes of sandboxes."""
    remote_files: bool = field(default=False, kw_only=True)
    """Files cross a network, so the largest are left out."""

    max_in_flight: int = field(default=150, kw_only=True)
    """How many commands the concurrency cases run at once."""
    slow: float = field(default=1, kw_only=True)
    """Multiplies all deadlines."""

    def __post_init__(self) -> None:
        if self.no_streaming and not self.no_back_pressure:
            object.__setattr__(self, "no_back_pressure", True)

    @property
    def deadline_s(self) -> float:
        """For what should take milliseconds: generous, as other work may use the machine."""
        return 20 * self.slow

    def differences(self) -> list[str]:
        """The names of the declared differences."""
        return [name for name in difference_names() if getattr(self, name)]


def difference_names() -> list[str]:
    """All differences that can be declared."""
    return [entry.name for entry in fields(Backend) if entry.default is False]
