"""Connections between sandboxes: addresses, host names, and ports of one on the loopback of another."""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from nemo_gym_sandbox._core import codec
from nemo_gym_sandbox._core.native import NativeProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nemo_gym_sandbox.providers.base import SandboxHandle
    from nemo_gym_sandbox.providers.opensandbox._config import OpenSandboxNetworkingConfig

DAEMON_PORT: Final = 44772
"""Where the daemon listens in every sandbox: its direct address is the sandbox's."""

SETUP_TIMEOUT_S: Final = 180
HOSTS_TIMEOUT_S: Final = 60

_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_LONGEST_NAME: Final = 253

# Runs in the sandbox, with whatever Python it has: argv is the target, the file, and the ports.
_RELAY: Final = """
import asyncio, os, sys

target, ready, ports = sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]]

async def move(reader, writer):
    try:
        while True:
            data = await reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()

def handler(port):
    async def handle(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(target, port)
        except OSError as error:
            print("port", port, "of", target, "cannot be reached:", error, file=sys.stderr, flush=True)
            writer.close()
            return
        await asyncio.gather(move(reader, far_writer), move(far_reader, writer))
        writer.close()
        far_writer.close()
    return handle

async def main():
    for port in ports:
        await asyncio.start_server(handler(port), "127.0.0.1", port)
        try:
            await asyncio.start_server(handler(port), "::1", port)
        except OSError:
            pass
    with open(ready + ".new", "w") as file:
        file.write("ready")
    os.replace(ready + ".new", ready)
    await asyncio.get_event_loop().create_future()

asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main())
"""


class OpenSandboxNetworking(NativeProvider):
    """What :class:`OpenSandboxProvider` does with its block ``networking``."""

    _networking: OpenSandboxNetworkingConfig
    _background_exec: bool
    _hosts_file: ClassVar[str] = "/etc/hosts"

    def validate_networking(self) -> None:
        """Raise NotImplementedError unless the configuration says that sandboxes may reach each other."""
        if not self._networking.enabled:
            raise NotImplementedError("sandboxes reach each other only with networking.enabled=true")

    async def network_address(self, handle: SandboxHandle) -> str:
        """The IP address under which other sandboxes reach this one.

        Raises ValueError where the server's network has no such address, because it maps ports or routes by headers.
        """
        self.validate_networking()
        found: Mapping[str, Any] = (await self._on(handle, codec.ENDPOINT, port=DAEMON_PORT, direct=True)).json()
        url: str = found["url"]
        where = urlsplit(url)
        what = f"sandbox {handle.sandbox_id} has no direct, unmapped IP: other sandboxes can't reach it by an address"
        headers: Mapping[str, str] = found["headers"] or {}
        plain = where.path in ("", "/") and not (where.query or where.fragment or where.username or where.password)
        try:
            if where.scheme not in ("http", "https") or where.port != DAEMON_PORT or not plain or headers:
                raise ValueError(what)
            address = ipaddress.ip_address(where.hostname or "")
        except ValueError:
            raise ValueError(what) from None
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            raise ValueError(f"sandbox {handle.sandbox_id} has no peer-reachable address, but {address}")
        return str(address)

    async def set_hosts(self, handle: SandboxHandle, hosts: Mapping[str, str]) -> None:
        """Make host names resolve to addresses inside the sandbox.

        Raises ValueError for what is no name or no address, before anything is changed; RuntimeError when it fails.
        """
        self.validate_networking()
        lines: list[str] = []
        for name, address in hosts.items():
            if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
                raise ValueError(f"Invalid sandbox hostname: {name!r}")
            lines.append(f"{ipaddress.ip_address(address)} {name}")
        if not lines:
            return
        # A file that ends in the middle of a line gets its end first.
        command = (
            f"printf '\\n%s' {' '.join(map(shlex.quote, lines))} >> {self._hosts_file} && echo >> {self._hosts_file}"
        )
        result = await self.exec(handle, command, timeout_s=HOSTS_TIMEOUT_S, user="root")
        if result.return_code != 0 or result.error_type:
            raise RuntimeError(
                f"the host names of sandbox {handle.sandbox_id} could not be set (code {result.return_code}): "
                f"{(result.stderr or '').strip()}"
            )

    def validate_port_forwarding(self) -> None:
        """Raise NotImplementedError unless the configuration allows ports of one sandbox on another's loopback."""
        if not self._networking.loopback_forwarding:
            raise NotImplementedError("ports are forwarded only with networking.loopback_forwarding=true")
        if not self._background_exec:
            raise NotImplementedError("ports are forwarded only with operations.background_exec=true")

    async def forward_ports(
        self, handle: SandboxHandle, target_address: str, ports: Sequence[int], *, ready_file: str
    ) -> None:
        """Forward ports of the sandbox's loopback to another address until cancelled.

        The sandbox needs a Python. ``ready_file`` gets the text ``ready`` inside the sandbox when the ports are open.
        Raises ValueError for what is no address or port, RuntimeError when the relay could not be started, or ended.
        """
        self.validate_port_forwarding()
        target = str(ipaddress.ip_address(target_address))
        for port in ports:
            given: Any = port
            if isinstance(given, bool) or not isinstance(given, int) or not 0 < given < 65536:
                raise ValueError(f"a port is a number from 1 to 65535, not {port!r}")
        if self._networking.setup_command:
            done = await self.exec(handle, self._networking.setup_command, timeout_s=SETUP_TIMEOUT_S, user="root")
            if done.return_code != 0 or done.error_type:
                raise RuntimeError(
                    f"networking.setup_command failed in sandbox {handle.sandbox_id} (code {done.return_code}): "
                    f"{(done.stderr or done.stdout or '').strip()}"
                )
        argv = [self._networking.python_executable, "-c", _RELAY, target, ready_file, *map(str, ports)]
        ended = await self.exec(handle, f"exec {shlex.join(argv)}", timeout_s=math.inf, user="root")
        said = "\n".join(text for text in (ended.stdout, ended.stderr) if text).strip()
        raise RuntimeError(
            f"port forwarding exited in sandbox {handle.sandbox_id} with code {ended.return_code}: {said[-2000:]}"
        )
