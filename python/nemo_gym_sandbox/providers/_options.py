"""Checks of what a provider is configured with: names first, then values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
Block = TypeVar("Block")


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint for a mistyped name, to end a message with; empty when no candidate is near."""
    from difflib import get_close_matches

    match = get_close_matches(name, list(candidates), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _refuse_unknown(where: str, given: Iterable[str], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            raise TypeError(
                f"{where} got an unexpected keyword argument {key!r}; allowed: {', '.join(sorted(known))}{nearest(key, known)}"
            )


def check_keywords(cls: type[Any], given: Mapping[str, object]) -> None:
    """Raise TypeError, naming the nearest one that exists, for a keyword that the class's constructor does not take."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    _refuse_unknown(cls.__name__, given, parameters.keys())


def named_keywords(init: Callable[P, R]) -> Callable[P, R]:
    """For a constructor: the same help with an unknown keyword as :func:`check_keywords`, for direct calls."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]
    where = init.__qualname__.rpartition(".")[0]

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _refuse_unknown(where, kwargs, known)
        return init(*args, **kwargs)

    return checked


def block(kind: type[Block], given: Any, name: str) -> Block:
    """Read one block of a provider's configuration: its dataclass, a mapping of its keys, or None for the defaults."""
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping or {kind.__name__}, not {type(given).__name__}")
    keys = {str(key): value for key, value in cast("Mapping[Any, Any]", given).items()}
    _refuse_unknown(name, keys, [field.name for field in dataclasses.fields(cast("Any", kind))])
    return kind(**keys)


def plain(config: Any) -> dict[str, Any]:
    """A dataclass as a JSON-ready mapping. None is left out where it is the default, and is a choice elsewhere."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None or field.default is not None:
            values[field.name] = list(cast("Iterable[object]", value)) if isinstance(value, (list, tuple)) else value
    return values


def plain_values(value: Any) -> Any:
    """A copy of nested mappings and sequences in plain dicts and lists; anything else stays itself."""
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple):
        return tuple(plain_values(item) for item in cast("Iterable[Any]", value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [plain_values(item) for item in cast("Sequence[Any]", value)]
    return value


def number(
    name: str, value: Any, *, at_least: float | None = None, above: float | None = None, whole: bool = False
) -> None:
    """Raise ValueError, naming the field, unless value is a finite number within the bounds."""
    bound = f" of at least {at_least:g}" if at_least is not None else f" above {above:g}" if above is not None else ""
    kinds = int if whole else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if fits:
        fits = (at_least is None or value >= at_least) and (above is None or value > above)
    if not fits:
        kind = "a whole number" if whole else "a finite number"
        raise ValueError(f"{name} must be {kind}{bound}, got {value!r}")


def optional_number(
    name: str, value: Any, *, at_least: float | None = None, above: float | None = None, whole: bool = False
) -> None:
    """Like :func:`number`, with None allowed."""
    if value is not None:
        number(name, value, at_least=at_least, above=above, whole=whole)


def text(name: str, value: Any) -> None:
    """Raise ValueError unless value is a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {value!r}")


def optional_text(name: str, value: Any) -> None:
    """Raise ValueError unless value is a string or None."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r}")


def text_mapping(name: str, value: Any) -> None:
    """Raise ValueError unless value is a mapping of strings to strings."""
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(item, str) for key, item in cast("Mapping[object, object]", value).items()
    ):
        raise ValueError(f"{name} must be a mapping of strings, got {value!r}")


def switch(name: str, value: Any) -> None:
    """Raise ValueError unless value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless value is one of the choices."""
    if value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def texts(name: str, value: Any) -> None:
    """Raise ValueError unless value is a list or tuple of strings."""
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(item, str) for item in cast("Iterable[object]", value)
    ):
        raise ValueError(f"{name} must be a list of strings, got {value!r}")
