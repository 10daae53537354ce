"""One public server for all tests here, and the event loops that they run on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from public_server import HERE, PublicServer, Sdk, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


@pytest.fixture(scope="session")
def server() -> PublicServer:
    return shared.server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first to need the server may have to install it."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(400))


def pytest_sessionfinish() -> None:
    shared.close()


@pytest.fixture(scope="module", params=["direct", "proxied"])
def proxied(request: pytest.FixtureRequest) -> bool:
    """Whether sandboxes are reached through the server."""
    return request.param == "proxied"


@pytest.fixture(scope="module")
def sdk(server: PublicServer, proxied: bool) -> Iterator[Sdk]:
    """The official SDK, connected to the public server."""
    sdk = Sdk(server.python, server.url, server.api_key, proxied)
    yield sdk
    sdk.close()


@pytest.fixture
def run(proxied: bool) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's coroutine; each way of reaching sandboxes has its own kind of event loop."""
    factory = uvloop.new_event_loop if proxied else None

    def runner(body: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(asyncio.wait_for(body, 100))

    return runner
