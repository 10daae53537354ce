"""Lists a directory tree inside a sandbox with one shell command, whatever the names in it are."""

from __future__ import annotations

import shlex
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# A batch is: the number of names; the names; their raw modes in hex, one a line; the targets of the links among them.
# Everything ends with a zero byte, which neither a name nor a target can have in it.
_BATCH: Final = (
    'printf "%s\\0" "$#" "$@"; stat -c %f -- "$@" || exit 1; printf "\\0"; '
    'for f; do if [ -h "$f" ]; then readlink "$f" || exit 1; printf "\\0"; fi; done'
)

# Where there is no find or stat: the shell's own patterns and tests. Of a mode it knows who can execute, no more.
_WALK: Final = """
one() {
  if [ -h "$1" ]; then m=a1ff; elif [ -d "$1" ]; then m=41ed; elif [ ! -f "$1" ]; then m=1000
  elif [ -x "$1" ]; then m=81ed; else m=81a4; fi
  printf '1\\0%s\\0%s\\n\\0' "$1" "$m"
  if [ -h "$1" ]; then
    if command -v readlink >/dev/null; then readlink "$1" || exit 1
    else t=$(ls -ld "$1" && printf x) || exit 1; t=${t%x}; printf '%s' "${t#*"$1 -> "}"; fi
    printf '\\0'
  fi
}
walk() {
  if [ ! -r "$1" ] || [ ! -x "$1" ]; then echo "$1: cannot be read" >&2; exit 1; fi
  for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ ! -e "$f" ] && [ ! -h "$f" ]; then continue; fi
    one "$f"
    if [ -d "$f" ] && [ ! -h "$f" ]; then walk "$f"; fi
  done
}
one .; walk ."""


def command(root: str) -> str:
    """The command that lists what is below a directory, for :func:`parse`."""
    where = shlex.quote(root if root.startswith("/") else f"./{root}")
    return (
        f"cd {where} || exit 1\n"
        "if command -v find >/dev/null && command -v readlink >/dev/null && stat -c %f . >/dev/null 2>&1; then\n"
        f"  find . -exec sh -c {shlex.quote(_BATCH)} sh {{}} +\n"
        f"else{_WALK}\nfi"
    )


def parse(text: str, root: str) -> Iterator[tuple[str, int, str | None]]:
    """Each entry's relative path (the directory itself is ""), raw mode, and where it leads if it is a link.

    Raises RuntimeError for what is not such a listing, and for names that are not UTF-8 or lead elsewhere.
    """
    fields = iter(text.split("\0"))
    try:
        while count := next(fields):
            names = [_checked(next(fields), root) for _ in range(int(count))]
            modes = [int(mode, 16) for mode in next(fields).split()]
            for name, mode in zip(names, modes, strict=True):
                target = _check_text(next(fields), root).removesuffix("\n") if stat.S_ISLNK(mode) else None
                yield name, mode, target
    except (ValueError, StopIteration):
        raise RuntimeError(f"the listing of {root!r} is not understood; did its tree change meanwhile?") from None


def _checked(name: str, root: str) -> str:
    if name == ".":
        return ""
    parts = name.split("/")
    if len(parts) < 2 or parts[0] != "." or any(part in ("", ".", "..") for part in parts[1:]):
        raise RuntimeError(f"the listing of {root!r} has an impossible name: {name!r}")
    _check_text(name, root)
    return name[2:]


def _check_text(text: str, root: str) -> str:
    if "\ufffd" in text:  # what a byte becomes that is not UTF-8
        raise RuntimeError(f"a name below {root!r} is not UTF-8: {text!r}")
    return text
