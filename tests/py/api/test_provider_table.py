"""docs/providers.md says what each provider can do, as its class does. Run this file to write its table again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym_sandbox.providers import _planned, base
from nemo_gym_sandbox.providers.registry import _BUILT_IN, get_provider_class

PAGE = Path(__file__).parents[3] / "docs" / "providers.md"
BEGIN, END = "<!-- made by tests/py/api/test_provider_table.py -->", "<!-- until here -->"

CAPABILITIES: dict[str, tuple[str, type[Any]]] = {
    "output as it arrives, input for commands": (
        "`exec(on_stdout=, on_stderr=, stdin=)`",
        base.SupportsSandboxExecStream,
    ),
    "services that outlive their command": (
        "`exec(preserve_background_services=True)`",
        base.SupportsSandboxBackgroundServices,
    ),
    "terminals": ("`pty.create()`, `pty.exec()`", base.SupportsSandboxPty),
    "terminals taken up again": ("`pty.attach()`", base.SupportsSandboxPtyAttach),
    "ports": ("`endpoint()`", base.SupportsSandboxEndpoint),
    "pause and resume": ("`pause()`, `resume()`", base.SupportsSandboxPauseResume),
    "use by another process": ("`serialize()`, `connect()`", base.ConnectableProvider),
    "letting go of a sandbox, provider kept": ("`disconnect()`", base.SupportsSandboxDisconnect),
    "uploads that belong to a changed default user": ("`set_default_user()`", base.SupportsSandboxDefaults),
    "sidecars": ("`SandboxSpec.sidecars`, `sidecar()`", base.SupportsSandboxSidecars),
    "snapshots": ("the provider's `snapshot()`", base.SupportsSandboxSnapshot),
    "a network between sandboxes": ("the provider's `network_address()`", base.SupportsSandboxNetwork),
    "ports of another sandbox": ("the provider's `forward_ports()`", base.SupportsSandboxPortForwarding),
    "kernel capabilities, shared memory": (
        "the provider's `configure_runtime()`",
        base.SupportsSandboxRuntimeRequirements,
    ),
    "shared storage": ("the provider's `shared_volume_options()`", base.SupportsSandboxSharedStorage),
}


def table() -> str:
    classes = {name: get_provider_class(name) for name in sorted(_BUILT_IN)}
    there = {name: cls for name, cls in classes.items() if not issubclass(cls, _planned._PlannedProvider)}
    lines = [
        f"| | by | {' | '.join(f'`{name}`' for name in there)} |",
        "|---|---|" + "---|" * len(there),
        f"| commands, files, directories, status | `exec()`, `upload()`, `download_dir()`, ... |{' yes |' * len(there)}",
    ]
    for what, (by, protocol) in CAPABILITIES.items():
        cells = " | ".join("yes" if issubclass(cls, protocol) else "-" for cls in there.values())
        lines.append(f"| {what} | {by} | {cells} |")
    absent = ", ".join(f"`{name}`" for name in classes if name not in there)
    return "\n".join([*lines, "", f"Names that are reserved and have no implementation yet: {absent}."])


def page() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text().partition(f"{BEGIN}\n")
    found, _, after = rest.partition(f"\n{END}")
    return before, found, after


def test_the_page_says_what_the_classes_do():
    assert page()[1] == table(), (
        f"docs/providers.md is out of date; run: PYTHONPATH=python python tests/py/api/{Path(__file__).name}"
    )


def test_every_optional_capability_has_a_row():
    rows = {protocol for _, protocol in CAPABILITIES.values()}
    protocols = {
        value
        for name, value in vars(base).items()
        if name.startswith("SupportsSandbox") or name == "ConnectableProvider"
    }
    assert rows == protocols


def test_the_table_tells_providers_apart():
    rows = [line for line in table().splitlines() if line.startswith("| ")]
    assert any("| - |" in row for row in rows)
    assert any(row.endswith("| yes | yes |") or "| yes | yes | " in row for row in rows)


if __name__ == "__main__":
    before, _, after = page()
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
