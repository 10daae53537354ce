"""What a sandbox's environment says to the script that starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nemo_gym_sandbox.providers.base import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxCreateError, OpenSandboxProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from public_server import PublicServer


def test_the_environment_says_what_a_sandbox_runs(
    server: PublicServer, proxied: bool, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def body() -> None:
        provider = OpenSandboxProvider(
            connection=server.connection(proxied), create={"connect_poll_s": 0.1, "retries": 0}
        )
        command = "echo $((40 + 2)) >/run-by-$0; exec tail -f /dev/null"
        env = {"BOOTSTRAP_CMD": command, "BOOTSTRAP_SHELL": "sh"}
        handle = await provider.create(SandboxSpec(image=server.image, ttl_s=600, env=env))
        try:
            # The daemon does not wait for it.
            found = await provider.exec(
                handle, "until [ -s /run-by-sh ]; do sleep 0.05; done; cat /run-by-sh", timeout_s=20
            )
            assert (found.stdout, found.return_code) == ("42", 0)
        finally:
            await provider.close(handle)
        env = {"EXECD_BOOTSTRAP_PRE_SCRIPT": "/nowhere/pre.sh"}
        with pytest.raises(OpenSandboxCreateError):
            await provider.create(SandboxSpec(image=server.image, ttl_s=600, ready_timeout_s=20, env=env))
        await provider.aclose()

    run(body())
