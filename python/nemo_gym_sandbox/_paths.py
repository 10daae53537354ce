"""Paths inside a sandbox."""

from __future__ import annotations

import os


def inside(path: str | os.PathLike[str]) -> str:
    """A path inside a sandbox as text.

    Raises TypeError for what is no path, or one of bytes: its text form would be the name of some other file.
    """
    text = os.fspath(path)
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a path inside a sandbox must be text, not {type(text).__name__}")
    return text
