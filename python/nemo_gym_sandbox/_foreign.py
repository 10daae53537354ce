"""Our providers for an installed ``nemo_gym``: they take and give its types, and raise its errors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nemo_gym_sandbox.providers import base
from nemo_gym_sandbox.providers.docker import DockerProvider
from nemo_gym_sandbox.providers.local import LocalProvider
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import Callable

PROVIDERS: dict[str, type[Any]] = {
    "docker": DockerProvider,
    "local": LocalProvider,
    "opensandbox": OpenSandboxProvider,
}


def take_over(package: str) -> Callable[[], None]:
    """Register our providers with a package that has the API of :mod:`nemo_gym_sandbox`; returns what undoes it."""
    api: Any = import_module(package)
    types = Types(import_module(f"{package}.providers.base"))
    before: dict[str, Any] = {name: api.get_provider_class(name) for name in PROVIDERS if name in api.list_providers()}
    for name, cls in PROVIDERS.items():
        api.register_provider(name, adapted(cls, types), override=True)

    def undo() -> None:
        for name, cls in before.items():
            api.register_provider(name, cls, override=True)

    return undo


def adapted(cls: type[Any], types: Types) -> type[Any]:
    """A subclass of one of our providers that speaks in another package's types."""
    members: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "writes_spec_files": False,  # the other package uploads them
    }
    for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            members[name] = _translated(method, types)
    return type(cls.__name__, (cls,), members)


def _translated(method: Callable[..., Any], types: Types) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = {key: types.to_ours(value) for key, value in kwargs.items()}
            return types.to_theirs(await method(self, *map(types.to_ours, args), **given))
        except Exception as error:
            types.make_theirs(error)
            raise

    return call


class Types:
    """The other package's types beside ours."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._errors: dict[type[BaseException], type[BaseException]] = {}

    def _type(self, name: str) -> Any:
        return getattr(self._theirs, name, None)

    def to_ours(self, value: Any) -> Any:
        """An argument. Handles pass as they are: only their fields are looked at."""
        if _is(value, self._type("SandboxSpec")):
            fields = _fields(value, base.SandboxSpec)
            fields["resources"] = _plain(fields.get("resources"))
            fields["sidecars"] = [_plain(entry) for entry in fields.get("sidecars") or ()]
            fields["files"] = {}
            return base.SandboxSpec(**fields)
        if _is(value, self._type("SandboxPtySpec")):
            return base.SandboxPtySpec(**_fields(value, base.SandboxPtySpec))
        return value

    def to_theirs(self, value: Any) -> Any:
        """A result. What their type has no field for is left out."""
        if isinstance(value, base.SandboxStatus):
            known = self._theirs.SandboxStatus
            if value.value in {status.value for status in known}:
                return known(value.value)
            return known("running")  # an older API calls a paused sandbox that
        if isinstance(value, (base.SandboxHandle, base.SandboxExecResult, base.SandboxEndpoint)):
            theirs = self._type(type(value).__name__)
            return theirs(**_fields(value, theirs))
        if isinstance(value, base.SandboxPtySession):
            return Session(value, self)
        return value

    def make_theirs(self, error: BaseException) -> None:
        """Let ``except`` clauses of both packages catch an error."""
        kind = type(error)
        if kind not in self._errors:
            named = (self._type(ours.__name__) for ours in kind.__mro__ if ours.__module__ == base.__name__)
            theirs = next((found for found in named if found is not None), None)
            if theirs is None or issubclass(kind, theirs):
                return
            self._errors[kind] = type(kind.__name__, (kind, theirs), {"__module__": kind.__module__})
        error.__class__ = self._errors[kind]


class Session:
    """A terminal session whose errors are those of the other package."""

    def __init__(self, session: Any, types: Types) -> None:
        self._session = session
        self._types = types

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await found(*args, **kwargs)
            except Exception as error:
                self._types.make_theirs(error)
                raise

        return call

    async def __aenter__(self) -> Session:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._session.__aexit__(*exception)

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> bytes:
        chunk: bytes = await self.read()
        if not chunk:
            raise StopAsyncIteration
        return chunk


def _fields(value: Any, kind: Any) -> dict[str, Any]:
    """The fields of a value that a dataclass has too."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if hasattr(value, field.name)}


def _plain(value: Any) -> Any:
    """A dataclass, with those in it, as a mapping."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _is(value: Any, kind: type[Any] | None) -> bool:
    return kind is not None and isinstance(value, kind)
