"""The conformance cases over the public server, on the other event loop, with the daemon reached through the server."""

from __future__ import annotations

import asyncio
import dataclasses

import uvloop
from public_server import shared

from nemo_gym_sandbox import SandboxSpec
from nemo_gym_sandbox.providers.opensandbox import OpenSandboxProvider
from nemo_gym_sandbox.testing import SandboxConformance, cases
from nemo_gym_sandbox.testing._known import backend as known


def provider() -> OpenSandboxProvider:
    return OpenSandboxProvider(
        connection=shared.server().connection(proxied=True),
        operations={"retry_delay_s": 0.05},
        create={"connect_poll_s": 0.05},
    )


class TestPublicServer(SandboxConformance):
    # What such a server does differently is known; only where it is turns out when it has been started.
    backend = dataclasses.replace(
        known({"opensandbox": {}}, spec=SandboxSpec(image="lab/bash:1", workdir="/work/space")),
        provider=provider,
        max_in_flight=40,
        slow=2,
    )

    @classmethod
    def new_runner(cls) -> asyncio.Runner:
        return asyncio.Runner(loop_factory=uvloop.new_event_loop)

    @classmethod
    def setup_class(cls) -> None:
        shared.server()  # a process of its own, which outlives the class
        super().setup_class()


# Each sandbox is a container that another program makes: here run the cases that can share one. Those about the beginning
# and the end of sandboxes are run in Go.
for case in cases(TestPublicServer.backend):
    if case.own:
        delattr(TestPublicServer, f"test_{case.name}")
